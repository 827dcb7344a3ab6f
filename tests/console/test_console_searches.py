"""Searches in the console: the list, the page of one search, its charts, and changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from live_server import TOKEN, Live
from page_desk import get, post, words
from searching import Searching, searching
from visitor import Page

from local_backend.api.guard import SESSION
from local_backend.console.searches import LINES, ROWS
from local_backend.console.sessions import csrf_of
from local_backend.errors import Unavailable
from local_backend.scheduler.model import Reason
from local_backend.services.algorithms import AlgorithmService
from local_backend.store import searches
from local_backend.store.searches import ExperimentRow

LIST, ONE = "/console/searches", "/console/searches/s"
HOSTILE = "<img src=x onerror=alert(1)> \"'{{7*7}}"


@pytest.fixture
def search(live: Live) -> Iterator[Searching]:
    with searching(live) as found:
        yield found


def number_of(live: Live, name: str = "s") -> int:
    row = live.database.read(lambda c: searches.named(c, name, live.settings.user))
    assert row is not None
    return row.number


def add(live: Live, rows: list[dict[str, Any]], name: str = "s") -> None:
    """Add experiments to a search that has ended."""
    number = number_of(live, name)
    usual: dict[str, Any] = {"search": number, "state": "FINISHED", "parameters": '{"rate": 0.5}'}
    live.database.write(lambda c: searches.add(c, [ExperimentRow(**usual | one) for one in rows]))


def ended(search: Searching, values: tuple[float, ...] = (3.5, 1.25), **asked: Any) -> list[str]:
    """Run a search to its end with these values, and return its execs."""
    search.begin(maxJobNum=len(values), maxParalleJobNum=len(values), **asked)
    execs = search.running(len(values), asked.get("name", "s"))
    for one, value in zip(execs, values, strict=True):
        search.loss(one, value)
    search.over(asked.get("name", "s"))
    return execs


def test_the_runs_of_a_search_are_found_and_compared(live: Live, search: Searching) -> None:
    other = live.submitted("--exec-start PyTorch --model-main main.py")
    worse, best, third = ended(search, (3.5, 1.25, 2.0), name="my-search")
    page = get(live, "/console/searches/my-search")
    links = {one.get("href", "") for one in Page(page.text).all("a")}
    [runs] = [link for link in links if link.startswith("/console/runs?")]
    [compared] = [link for link in links if link.startswith("/console/runs/compare?")]
    assert runs == "/console/runs?find=search%3Amy-search"
    listed = get(live, runs).text
    assert all(f'href="/console/runs/{one}"' in listed for one in (worse, best, third))
    assert f'href="/console/runs/{other}"' not in listed
    assert parse_qs(urlsplit(compared).query)["id"] == [best, third, worse]
    assert get(live, compared).status == 200
    for find, found in (("search:*", {worse, best, third}), ("-search:*", {other}), ('-search:"MY-SEARCH"', {other}),
                        ("search:none", set())):
        answer = live.call("GET", f"/execs?{urlencode({'find': find})}").json()
        assert {one["id"] for one in answer} == found, find
    # A run that is deleted is left out.
    assert live.call("DELETE", f"/execs/{best}").status in (200, 204)
    page = get(live, "/console/searches/my-search")
    assert "Compare the best 2" in words(page)


def column(text: str, place: int) -> list[str]:
    """Return the cells of a column of the last table, without tags."""
    body = text.rpartition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)]
    return [" ".join(re.sub(r"<[^>]*>", " ", row[place]).split()) for row in rows]


def test_an_empty_list_says_how_to_begin(live: Live) -> None:
    assert "dlicmd search train.py" in words(get(live, LIST))


def test_the_list_shows_searches_with_hostile_names_as_text(live: Live, search: Searching) -> None:
    ended(search)
    search.begin(name=HOSTILE)
    answer = get(live, LIST)
    assert "<img src=x" not in answer.text and HOSTILE in words(answer)
    assert "s finished Random 2 ended loss 1.25" in words(answer)
    link = next(one for one in re.findall(r'href="([^"]*)"', answer.text) if "onerror" in one)
    page = get(live, link)
    assert page.status == 200 and "<img src=x" not in page.text and HOSTILE in words(page)
    assert column(get(live, f"{LIST}?state=FINISHED").text, 0) == ["s"]
    assert "No search is in this state" in words(get(live, f"{LIST}?state=FAILED"))


def test_the_list_is_sorted_and_paged_by_the_server(live: Live, search: Searching) -> None:
    for number in range(ROWS + 1):
        search.begin(name=f"s{number:03d}")
        search.live.call("PUT", f"/hypersearch/s{number:03d}/force")
    assert column(get(live, f"{LIST}?sort=hpoName").text, 0) == [f"s{one:03d}" for one in range(ROWS)]
    assert column(get(live, f"{LIST}?sort=hpoName&page=2").text, 0) == [f"s{ROWS:03d}"]
    assert column(get(live, f"{LIST}?sort=nothing&page=x").text, 0)[0] == f"s{ROWS:03d}"  # the newest first


def test_other_users_see_nothing_of_a_search_and_change_nothing(team: Live) -> None:
    with searching(team) as search:
        search.begin(name="secret")
        bob = team.add_user("bob")
        assert "secret" not in get(team, LIST, bob).text
        for path in ("", "/part", "/experiments", "/progress", "/parallel", "/importances"):
            answer = get(team, f"{LIST}/secret{path}", bob)
            assert answer.error == (404, "search.not_found"), path
        for action in ("stop", "force", "restart", "delete"):
            assert post(team, f"{LIST}/secret/{action}", token=bob).error == (404, "search.not_found")
        assert search.get("secret")["state"] in ("SUBMITTED", "RUNNING")


def test_the_page_of_a_search_shows_its_experiments_and_its_best(live: Live, search: Searching) -> None:
    first, second = ended(search)
    answer = get(live, ONE)
    said = words(answer)
    assert "loss 1.25 , experiment 1" in said and "2 of 2 ended, 0 running, 0 failed" in said
    assert f'href="/console/runs/{second}"' in answer.text and f'href="/console/runs/{first}"' in answer.text
    assert "dlicmd --hpo-export s experiments.csv" in said and f"dlicmd --exec-trainresult {second}" in said
    assert column(answer.text, 0) == ["1", "0"]  # the best value first
    assert column(get(live, f"{ONE}/experiments?sort=id&down=true", part=True).text, 0) == ["1", "0"]
    assert column(get(live, f"{ONE}/experiments?sort=id", part=True).text, 0) == ["0", "1"]
    assert "No experiment is in this state" in words(get(live, f"{ONE}/experiments?state=FAILED", part=True))


def test_many_experiments_are_paged_and_the_charts_are_bounded(live: Live, search: Searching) -> None:
    ended(search)
    add(live, [{"id": one, "metric": 50.0 - (one == 2501) * 49.5, "end_time": 1e9 + one, "exec_id": f"local-{one}"}
               for one in range(2, 3002)])
    assert column(get(live, f"{ONE}/experiments?sort=id&page=2").text, 0) == [str(ROWS + one) for one in range(ROWS)]
    shown = json.loads(get(live, f"{ONE}/parallel").body)
    assert 500 < len(shown["lines"]) <= LINES and shown["axes"] == [{"name": "rate", "log": False}]
    best = next(one for one in shown["lines"] if one["id"] == 2501)
    assert (best["value"], best["run"], best["at"]) == (0.5, "local-2501", [0.5])
    best_so_far, values = json.loads(get(live, f"{ONE}/progress?width=300").body)["series"]
    assert len(values["x"]) <= 600 and min(values["y"]) == 0.5
    assert best_so_far["y"] == sorted(best_so_far["y"], reverse=True) and best_so_far["x"][-1] == 3002
    timed = json.loads(get(live, f"{ONE}/progress?by=time&width=x").body)
    assert timed["x"]["kind"] == "time" and timed["series"][0]["x"] == sorted(timed["series"][0]["x"])


def test_changes_need_the_token_of_the_session(live: Live, search: Searching) -> None:
    search.begin()
    for action in ("stop", "force", "restart", "delete"):
        assert post(live, f"{ONE}/{action}", csrf="wrong").error == (403, "console.csrf")
    assert search.get()["state"] in ("SUBMITTED", "RUNNING")


def test_a_search_is_stopped_restarted_and_deleted(live: Live, search: Searching) -> None:
    search.begin()
    running = search.running(2)
    assert post(live, f"{ONE}/delete").error == (409, "search.active")
    assert post(live, f"{ONE}/stop").headers["location"] == ONE
    search.stops(running)
    assert search.over()["state"] == "STOPPED"
    refused = post(live, f"{ONE}/stop")
    assert refused.error == (400, "search.ended") and "already stopped" in words(refused)
    assert post(live, f"{ONE}/restart").status == 303
    search.running(2)
    assert post(live, f"{ONE}/force").status == 303 and search.get()["state"] == "STOPPED"
    assert post(live, f"{ONE}/delete").headers["location"] == LIST
    assert get(live, ONE).error == (404, "search.not_found")


def test_a_page_says_why_experiments_wait(live: Live, search: Searching) -> None:
    search.begin()
    first, _ = search.running(2)
    live.supervisor.reasons[first] = Reason("NO_SLOTS", "waiting for <2> slots", 1)
    answer = get(live, f"{ONE}/part", part=True)
    assert "Experiment 0 waits: waiting for <2> slots" in words(answer)


def test_rungs_and_resting_experiments_are_shown(live: Live, search: Searching) -> None:
    ended(search, algorithm="ASHA", algoParams=[
        {"name": "ResourceName", "value": "epochs"}, {"name": "ResourceValue", "value": "9"}])
    add(live, [{"id": 10, "resource": 3, "rung": 1, "metric": 0.5},
               {"id": 11, "resource": 3, "rung": 1, "state": "WAITING"}])
    answer = get(live, ONE)
    assert "Rungs" in words(answer) and "resting" in words(answer)
    row = re.search(r'<tr id="rung-0-1">(.*?)</tr>', answer.text, re.DOTALL)
    assert row is not None
    assert re.findall(r">(\d+)<", row[1]) == ["0", "1", "3", "2", "0", "1", "1", "0"]


def test_the_pareto_front_of_several_objectives_is_shown(live: Live, search: Searching) -> None:
    search.begin(maxJobNum=1, maxParalleJobNum=1, objectives={
        "loss": "minimize", "size": "minimize"})
    (only,) = search.running(1)
    search.finish(only, [{"step": 1, "loss": 5.0, "size": 5.0}])
    search.over()
    add(live, [{"id": one, "metric": loss, "measured": json.dumps({"loss": loss, "size": size})}
               for one, loss, size in ((1, 1.0, 4.0), (2, 4.0, 1.0), (3, 4.0, 4.0), (4, 1.0, 4.0))])
    shown = get(live, f"{ONE}/part").text.partition('id="front"')[2].partition("</section>")[0]
    assert re.findall(r'id="front-(\d+)"', shown) == ["1", "2", "4"]


def test_importances_that_are_not_known_leave_a_sentence(
    live: Live, search: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(search)
    answers: list[Any] = [{"<rate>": 0.75, "batch": 0.25}, {}, Unavailable("search.importances", "not <now>")]

    def asked(*_: object) -> dict[str, float]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return dict(found)

    monkeypatch.setattr(AlgorithmService, "importances", asked)
    shown = get(live, f"{ONE}/importances", part=True)
    assert "<rate> 75.0 %" in words(shown) and "<rate>" not in shown.text
    assert "at least 2 finished experiments" in words(get(live, f"{ONE}/importances", part=True))
    assert "not <now>" in words(get(live, f"{ONE}/importances", part=True))


def test_a_script_is_led_to_the_next_page_with_a_header(live: Live, search: Searching) -> None:
    ended(search)
    headers = {"Cookie": f"{SESSION}={TOKEN}", "HX-Request": "true", "X-CSRF-Token": csrf_of(TOKEN)}
    answer = live.call("POST", f"{ONE}/delete", b"", headers, token=None, base="")
    assert (answer.status, answer.headers["hx-redirect"]) == (204, LIST)
