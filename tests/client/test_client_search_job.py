"""Searches in Python: a handle that sends calls, and shows itself in notebooks."""

from __future__ import annotations

import asyncio
import builtins
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_server import TOKEN, FakeServer, Reply
from test_client_search import DONE, FIRST, ONE, PATH, search
from test_client_searches import answer, parts

import dlicmd

HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture
def client(fake: FakeServer) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", fake.port, http=True, token=TOKEN)


@pytest.fixture
def program(tmp_path: Path, fake: FakeServer) -> Path:
    """A program, and a server that starts the search s-1, which then ends."""
    answers = [search("RUNNING", FIRST), search("FINISHED", *DONE)]
    fake.replies["POST", PATH] = answer("s-1")
    fake.replies["GET", ONE] = lambda _: answer(answers.pop(0) if len(answers) > 1 else answers[0])
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder / "train.py"


def sent(fake: FakeServer) -> dict[str, Any]:
    return json.loads(parts(fake.requests("POST", "/hypersearch")[-1])["data"][1])


def test_a_search_is_started_and_awaited(client: dlicmd.Client, fake: FakeServer, program: Path) -> None:
    found = client.search(program, {"lr": "log:1e-4..1e-1", "batch": [32, 64]}, "accuracy:maximize",
                          ["--epochs", 5, "--lr", "{lr}"], trials=9, parallel=3, minutes=5, resource="epochs:27",
                          resume=True, seed=7, name="mine", options={"consumer": "a/b"})
    assert isinstance(found, dlicmd.SearchJob) and (found.name, found.state) == ("s-1", "")
    definition = sent(fake)
    assert definition["modelSpec"]["args"] == ("--exec-start PyTorch --model-dir model --model-main train.py "
                                               "--consumer a/b -- --epochs 5 --lr {lr}")
    assert definition["algoDef"]["algorithm"] == "ASHA" and definition["algoDef"]["maxRunTime"] == 5
    assert found.best is None and found.experiments == []
    assert found.wait() is found and found.state == "FINISHED"
    assert found.best is not None and found.best.parameters == {"lr": 0.02, "batch": 64} and found.best.value == 0.9
    assert [one.value for one in found.experiments] == [0.5, 0.9, 0.7, None]
    assert found.experiments[3].message and found.search.is_maximized and found.search.metric == "accuracy"
    assert repr(found) == "<SearchJob s-1 FINISHED 4/4 best 0.9>"


def test_an_existing_search_is_an_object_or_a_handle(client: dlicmd.Client, fake: FakeServer) -> None:
    fake.replies["GET", ONE] = answer(search("RUNNING", FIRST))
    assert client.search("s-1") == client.search(name="s-1") == search("RUNNING", FIRST)
    assert isinstance(client.search("s-1"), dlicmd.Search)
    handle = client.search_job("s-1")
    assert handle.state == "RUNNING" and not fake.requests("POST")
    with pytest.raises(dlicmd.WaitTimeout, match=r"Client.search_job\('s-1'\)"):
        handle.wait(timeout=0.3)
    with pytest.raises(dlicmd.NoSuchSearch):
        client.search_job("other")


def test_a_handle_stops_restarts_and_deletes(client: dlicmd.Client, fake: FakeServer) -> None:
    state = {"now": "RUNNING"}
    fake.replies["GET", ONE] = lambda _: answer(search(state["now"], FIRST))

    def to(name: str, status: int = 204) -> Any:
        return lambda _: state.update(now=name) or Reply(status)

    fake.replies["PUT", f"{ONE}/force"] = to("STOPPED")
    fake.replies["PUT", f"{ONE}/restart"] = to("RUNNING", 200)
    fake.replies["DELETE", ONE] = Reply(204)
    fake.replies["GET", f"{ONE}/importances"] = answer({"importances": {"a": 0.25, "b": 0.75, "c": "x"}})
    handle = client.search_job("s-1")
    assert handle.stop(force=True) is handle and handle.state == "STOPPED"
    assert handle.stop() is handle and handle.restart().state == "RUNNING"
    assert list(handle.importances().items()) == [("b", 0.75), ("a", 0.25)]
    handle.delete()
    assert [seen.method for seen in fake.seen if seen.method != "GET"] == ["PUT", "PUT", "DELETE"]


@pytest.mark.parametrize("wrong", [
    {"params": {}}, {"params": {"a": "2..1"}}, {"metric": "a:up"}, {"metric": []}, {"resource": "epochs"},
    {"resume": True}, {"program": "none.py"}, {"arguments": "words"}, {"workers": 3},
])
def test_a_wrong_search_is_not_sent(
    client: dlicmd.Client, fake: FakeServer, program: Path, wrong: dict[str, Any],
) -> None:
    given: dict[str, Any] = {"program": program, "params": {"a": "1..2"}, "metric": "loss"} | wrong
    with pytest.raises(dlicmd.UsageProblem):
        client.search(**given)
    assert not fake.requests("POST")


@pytest.mark.parametrize("said", [b'"n 1"', b'{"uid": "n 1", "href": "/h"}', b"n 1\n", b'{"hpoName": "n 1"}'])
def test_every_answer_with_a_name_is_understood(
    client: dlicmd.Client, fake: FakeServer, program: Path, said: bytes,
) -> None:
    fake.replies["POST", PATH] = Reply(200, said)
    assert client.search(program, {"a": "1..2"}, "loss").name == "n 1"
    for odd in (b"", b"[]", b'{"uid": 3}', b"a\x00b"):
        fake.replies["POST", PATH] = Reply(200, odd)
        with pytest.raises(dlicmd.ServerError):
            client.search(program, {"a": "1..2"}, "loss")


def test_experiments_are_a_table(
    client: dlicmd.Client, fake: FakeServer, monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.replies["GET", ONE] = answer(search("FINISHED", *DONE))
    handle = client.search_job("s-1")
    real = builtins.__import__

    def without_pandas(name: str, *args: Any) -> Any:
        if name == "pandas":
            raise ImportError
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    rows = handle.to_dataframe()
    assert rows[1] == {"id": 1, "state": "FINISHED", "value": 0.9, "lr": 0.02, "batch": 64, "exec": "local-2",
                       "startTime": "2020-11-17 19:59:48", "endTime": None, "message": None}
    monkeypatch.setattr(builtins, "__import__", real)
    frames = SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(__import__("sys").modules, "pandas", frames)
    assert handle.to_dataframe() == (rows, list(rows[0]))


def test_a_notebook_shows_the_best_first_and_no_markup(client: dlicmd.Client, fake: FakeServer) -> None:
    odd = DONE[0] | {"hyperParams": [{"name": HOSTILE, "dataType": "str", "fixedVal": HOSTILE}], "id": HOSTILE}
    fake.replies["GET", ONE] = answer(search("FINISHED", *DONE[1:], *([odd] * 30)))
    html = client.search_job("s-1")._repr_html_()
    assert "<script>" not in html and "\x1b" not in html and "13 more experiments" in html
    assert html.index("0.9") < html.index("0.7")


def test_searches_in_asyncio(fake: FakeServer, program: Path) -> None:
    async def work() -> None:
        async with dlicmd.AsyncClient("127.0.0.1", fake.port, http=True, token=TOKEN) as client:
            found = await client.search(program, {"lr": [0.1, 0.2]}, "accuracy")
            assert isinstance(found, dlicmd.AsyncSearchJob) and found.name == "s-1"
            assert await found.wait() is found and found.state == "FINISHED" and found.best.value == 0.9
            assert (await client.search("s-1")).name == (await client.search_job("s-1")).search.name == "s-1"

    asyncio.run(work())
    public = {name for name in dir(dlicmd.SearchJob) if name[0] != "_"}
    assert public == {name for name in dir(dlicmd.AsyncSearchJob) if name[0] != "_"} - {"search"}
