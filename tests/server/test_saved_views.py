"""Saved views of lists of execs: the calls, and `dlicmd ls` with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from live_server import Live
from support import PATIENCE

from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.services.saved_views import LONGEST, MOST_COLUMNS, MOST_VIEWS

JSON = {"Content-Type": "application/json"}
Command = Callable[..., tuple[int, str, str]]


def save(live: Live, token: str | None = None, **view: Any) -> tuple[int, str]:
    more = {} if token is None else {"token": token}
    answer = live.call("POST", wire.VIEWS, json.dumps(view).encode(), JSON, base="", **more)
    return answer.status, answer.headers.get(wire.ERROR_CODE.lower(), "")


def names(live: Live, token: str | None = None) -> list[str]:
    more = {} if token is None else {"token": token}
    return [one["name"] for one in live.call("GET", wire.VIEWS, base="", **more).json()]


@pytest.fixture
def dlicmd(live: Live, tmp_path: Path) -> Command:
    """Runs `dlicmd` as the owner of the server."""
    environment = {**os.environ, "HOME": str(tmp_path), "DLICMD_HOME": str(tmp_path / "client"), "COLUMNS": "120",
                   "DLICMD_TOKEN": live.token}
    address = ("--rest-host", "127.0.0.1", "--rest-port", str(live.port), "--http")

    def run(*words: str) -> tuple[int, str, str]:
        code, out, err = commands.run("dlicmd.cli", (*words, *address), environment, tmp_path, PATIENCE)
        return code, out.decode(), err.decode()

    return run


def test_a_view_keeps_its_values_and_replaces_the_view_of_its_name(live: Live) -> None:
    whole = {"name": "best f1/é", "find": "tag:best f1>0.9", "state": "finished,error", "sort_by": "metric.f1:desc",
             "all": True, "columns": ["param.lr", "metric.f1"]}
    assert save(live, **whole) == (200, "")
    assert save(live, name="a") == (200, "")
    empty = {"name": "a", "find": "", "state": "", "sort_by": "", "all": False, "columns": []}
    assert live.call("GET", wire.VIEWS, base="").json() == [empty, whole]
    assert save(live, name="a", find="digits") == (200, "")
    assert live.call("GET", wire.VIEWS, base="").json() == [empty | {"find": "digits"}, whole]
    assert live.call("DELETE", wire.view_path("best f1/é"), base="").status == 204
    assert names(live) == ["a"]


@pytest.mark.parametrize(("view", "code"), [
    ({"name": ""}, "view.invalid"), ({"name": " a"}, "view.invalid"), ({"name": "a\0"}, "view.invalid"),
    ({"name": "a" * (LONGEST + 1)}, "view.invalid"), ({"name": "a", "columns": ["lr"]}, "view.invalid"),
    ({"name": "a", "columns": ["metric.\0"]}, "view.invalid"),
    ({"name": "a", "sort_by": "x" * 1000}, "view.invalid"),
    ({"name": "a", "columns": [f"metric.{one}" for one in range(MOST_COLUMNS + 1)]}, "view.invalid"),
    ({"name": "a", "find": "f1>x"}, "query.find"), ({"name": "a", "state": "good"}, "query.state"),
    ({"name": 3}, "body.value"), ({"name": "a", "all": 1}, "body.value"), ({"name": "a", "columns": "x"}, "body.value"),
])
def test_a_view_that_no_list_can_show_is_refused(live: Live, view: dict[str, Any], code: str) -> None:
    assert save(live, **view) == (400, code)
    assert names(live) == []


def test_users_have_views_of_their_own_up_to_a_limit(start: Callable[..., Live]) -> None:
    live = start(embedded=False, jobs_share_server_account=True)
    ada, bob = live.add_user("ada"), live.add_user("bob")
    for number in range(MOST_VIEWS):
        assert save(live, ada, name=f"{number:03}") == (200, "")
    assert save(live, ada, name="more") == (400, "view.invalid")
    assert save(live, ada, name="007", find="x") == (200, "")  # replaces one
    assert names(live, bob) == []
    assert live.call("DELETE", wire.view_path("007"), base="", token=bob).status == 404
    assert len(names(live, ada)) == MOST_VIEWS


def test_ls_saves_shows_lists_and_deletes_views(live: Live, dlicmd: Command) -> None:
    for name, rate, loss in (("one", "0.1", 0.5), ("two", "0.2", 0.3), ("other", "0.3", 0.1)):
        run = live.submitted(f"--exec-start PyTorch --model-main main.py --appName {name} -- --lr {rate}")
        live.move(run, PENDING, RUNNING)
        live.say(run, {"step": 1, "loss": loss})
        live.move(run, FINISHED)
    live.submitted("--exec-start PyTorch --model-main main.py --appName one-pending -- --lr 0.1")

    def listed(*words: str) -> list[str]:
        code, out, err = dlicmd("ls", *words, "-o", "json")
        assert code == 0, err
        return [one["appName"] for one in json.loads(out)]

    assert listed("--find", "lr<0.3", "--state", "finished", "--sort", "-loss", "--column", "lr", "--save-view",
                  "low") == ["one", "two"]
    assert live.call("GET", wire.VIEWS, base="").json() == [{
        "name": "low", "find": "lr<0.3", "state": "finished", "sort_by": "metric.loss:desc", "all": False,
        "columns": ["param.lr", "metric.loss"]}]
    assert listed("--view", "low") == ["one", "two"]
    assert listed("--view", "low", "--find", "two") == ["two"]
    assert listed("--view", "low", "--sort", "loss") == ["two", "one"]
    assert listed("--view", "low", "--state", "pending") == ["one-pending"]
    assert "param.lr" in dlicmd("ls", "--view", "low")[1].splitlines()[0].lower()
    assert listed("--view", "low", "--sort", "took", "--save-view", "long")
    assert [one["sort_by"] for one in live.call("GET", wire.VIEWS, base="").json()] == [
        "duration:desc", "metric.loss:desc"]
    assert dlicmd("ls", "--views")[1].splitlines()[1].startswith("low  lr<0.3; states: finished;")
    assert dlicmd("ls", "--delete-view", "low")[0] == 0
    assert names(live) == ["long"]
    assert dlicmd("ls", "--view", "low")[0] == dlicmd("ls", "--delete-view", "low")[0] == Exit.NO_SUCH_ID
    assert dlicmd("ls", "--since", "1d", "--save-view", "new")[0] == Exit.USAGE
    assert names(live) == ["long"]
