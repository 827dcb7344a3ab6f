"""The table of runs: searching, sorting, pages, labels, and what can be done with selected runs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from live_server import TOKEN, Answer, Live, settings_for
from page_desk import get, post, words

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, PENDING, RUNNING
from local_backend.console import runs_csv
from local_backend.console.site import Console

RUNS, ACT, PART = "/console/runs", "/console/runs/act", "/console/runs/parts/table"
DETAILS = {wire.PREFER: wire.DETAILS}


def submit(live: Live, name: str, *program: str, token: str = TOKEN) -> str:
    args = f"--exec-start PyTorch --model-main main.py --appName {name} -- {' '.join(program)}"
    return live.submitted(args, token=token)


def finish(live: Live, exec_id: str, loss: float, accuracy: float, seconds: float = 5) -> None:
    live.move(exec_id, PENDING, RUNNING)
    start = live.row(exec_id).start_time
    assert start is not None
    progress = json.dumps({"loss": loss, "accuracy": accuracy})
    live.move(exec_id, FINISHED, progress=progress, end_time=start + seconds)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with 60 runs: run-1 to run-60 with --lr 0.01 to 0.60, of which every 3rd has finished, run-2 failed and
    run-4 runs."""
    live = Live(settings_for(tmp_path_factory.mktemp("many") / "home"), pages=Console())
    for number in range(1, 61):
        name = submit(live, f"run-{number}", "--lr", f"{number / 100:.2f}", f"--seed={number}")
        if number % 3 == 0:
            finish(live, name, number / 10, 1 - number / 100, 100 - number)
    live.move("local-2", PENDING, RUNNING, ERROR, message="exit code 3")
    live.run_on("local-4", "cpu-0")
    label(live, ["local-3", "local-6"], add=["best"])
    label(live, ["local-7"], add=["Old"], note="first <try>", favorite=True)
    yield live
    live.close()


def label(live: Live, ids: list[str], token: str = TOKEN, **change: Any) -> Answer:
    body = json.dumps({"ids": ids, **change}).encode()
    return live.call("POST", "/execs/labels", body, {"Content-Type": "application/json"}, token=token)


def ids(answer: Answer) -> list[str]:
    """Return the ids of the rows of a table, from the top."""
    return re.findall(r'<tr id="run-([^"]+)"', answer.text)


def numbers(*those: int) -> list[str]:
    return [f"local-{number}" for number in those]


def test_a_page_has_50_runs_and_links_to_the_next(many: Live) -> None:
    first = get(many, RUNS)
    assert first.status == 200 and ids(first) == numbers(*range(60, 10, -1))
    assert "1 to 50 of 60" in words(first).replace("\u202f", " ")
    assert f'{RUNS}?page=2" rel="next"' in first.text
    second = get(many, f"{RUNS}?page=2")
    assert ids(second) == numbers(*range(10, 0, -1)) and 'rel="next"' not in second.text
    assert ids(get(many, f"{RUNS}?page=9")) == [] and "No runs match" in get(many, f"{RUNS}?page=9").text


@pytest.mark.parametrize(("query", "first"), [
    ("sort=id&back=1", (1, 2)), ("sort=name", (1, 10)), ("sort=name&back=1", (9, 8)), ("sort=loss", (3, 6)),
    ("sort=loss&back=1", (60, 57)), ("sort=accuracy", (3, 6)), ("sort=favorite", (7,)), ("sort=tags", (7, 3, 6)),
    ("sort=state&state=error,finished", (2, 3)), ("state=running", (4,)), ("state=error", (2,)),
    ("favorites=1", (7,)), ("sort=nonsense", (60, 59)), ("page=-1", (60,)), ("state=nonsense", (60,)),
])
def test_columns_sort_and_filters_select(many: Live, query: str, first: tuple[int, ...]) -> None:
    assert ids(get(many, f"{RUNS}?{query}"))[:len(first)] == numbers(*first)


@pytest.mark.parametrize(("find", "found"), [
    ("run-59", (59,)), ("RUN-59", (59,)), ("local-59", (59,)), ("id:9", (9,)), ("name:run-6", (60, 6)),
    ("tag:best", (6, 3)), ("tag:old", ()), ("tag:Old", (7,)), ("old", (7,)), ("lr=0.07", (7,)), ("seed=7", (7,)),
    ("--lr=0.07", (7,)), ("lr=0.7", ()), ('"lr 0.0"', (*range(9, 0, -1),)),
    ('"--lr 0.07"', (7,)), ("state:error", (2,)),
    ("failed", ()),
    ("state:error,running", (4, 2)),
    ("loss<0.6", (3,)), ("loss<=0.6 -tag:best", ()), ("accuracy>=0.97", (3,)),
    ("is:favorite", (7,)), ("-is:favorite id:7", ()), ("user:nobody", ()), ("framework:pytorch id:8", (8,)),
    ("run-5 state:finished", (57, 54, 51)), ("%", ()), ("_", ()), ("'", ()),
])
def test_words_find_runs(many: Live, find: str, found: tuple[int, ...]) -> None:
    query = urlencode({"find": find})
    assert ids(get(many, f"{RUNS}?{query}")) == numbers(*found)
    rest = many.call("GET", f"/execs?{query}&sort_by=id:desc")
    assert [one["id"] for one in rest.json()] == numbers(*found)
    assert rest.headers["x-total-count"] == str(len(found))


@pytest.mark.parametrize("find", [
    "state:nonsense", "is:nonsense", "loss<x", "loss<nan", "f1>high", "-val/loss<=1e999", "x " * 21, "x" * 501,
    "a\x07b",
])
def test_an_invalid_search_says_what_is_wrong(many: Live, find: str) -> None:
    query = urlencode({"find": find})
    answer = get(many, f"{RUNS}?{query}")
    assert answer.status == 200 and 'class="notice bad" role="alert"' in answer.text and ids(answer) == []
    assert many.call("GET", f"/execs?{query}").error == (400, "query.find")


def test_rest_returns_parts_of_a_list(many: Live) -> None:
    answer = many.call("GET", "/execs?find=run&sort_by=loss:desc&limit=2&offset=1")
    assert [one["id"] for one in answer.json()] == numbers(57, 54) and answer.headers["x-total-count"] == "60"
    assert many.call("GET", "/execs?offset=59").json()[0]["id"] == "local-60"
    assert many.call("GET", "/execs?offset=x").error == (400, "query.number")


def test_the_table_alone_leads_the_address_along(many: Live) -> None:
    part = get(many, f"{PART}?searched=1&find=tag%3Abest&sort=loss", part=True)
    assert ids(part) == numbers(3, 6) and "<nav class=\"nav\"" not in part.text
    assert part.headers["hx-replace-url"] == f"{RUNS}?find=tag%3Abest&sort=metric.loss"
    assert f'hx-get="{PART}?find=tag%3Abest&amp;sort=metric.loss&amp;shown=' in part.text


def test_states_are_words_with_their_numbers(many: Live) -> None:
    text = words(get(many, RUNS))
    assert "pending 38 running 1 finished 20 error 1 killed 0" in text
    assert "exit code 3" in words(get(many, f"{RUNS}?state=error"))
    assert "first <try>" in words(get(many, f"{RUNS}?find=id:7"))


def test_labels_are_shown_with_details_alone(many: Live) -> None:
    one = many.call("GET", "/execs/local-7", headers=DETAILS).json()
    assert (one["tags"], one["note"], one["favorite"]) == (["Old"], "first <try>", True)
    assert not {"tags", "note", "favorite"} & many.call("GET", "/execs/local-7").json().keys()
    assert many.call("GET", "/execs/labels").json() == [{"tag": "best", "count": 2}, {"tag": "Old", "count": 1}]


def test_scripts_in_names_tags_and_notes_are_texts(live: Live) -> None:
    evil = "<script>alert(1)</script>"
    name = submit(live, f"'{evil}'")
    assert label(live, [name], add=["<b>x</b>", "'&'"], note=f"{evil}\n{{{{ 7 * 7 }}}}").status == 200
    text = get(live, RUNS).text
    assert evil not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "<b>x</b>" not in text
    assert "{{ 7 * 7 }}" in text and "49" not in re.findall(r'title="[^"]*7 \* 7[^"]*"', text)[0]


def test_users_see_and_change_only_their_own_runs(team: Live) -> None:
    ada, bob = team.add_user("ada"), team.add_user("bob")
    mine, other = submit(team, "of-ada", token=ada), submit(team, "of-bob", token=bob)
    assert ids(get(team, RUNS, ada)) == [mine] and ids(get(team, f"{RUNS}?all=1", ada)) == [mine]
    assert ids(get(team, f"{RUNS}?find=of-bob&all=1", ada)) == []
    assert "all users" not in get(team, RUNS, ada).text
    assert set(ids(get(team, f"{RUNS}?all=1"))) == {mine, other}
    assert label(team, [mine, other], ada, add=["x"]).error == (400, "exec.not_found")
    assert team.call("GET", f"/execs/{mine}", headers=DETAILS, token=ada).json().get("tags") is None
    for action in ({"act": "tag", "tag": "x"}, {"favorite": other}):
        refused = post(team, ACT, {"id": other, **action}, ada)
        assert refused.status == 400 and "is not found" in refused.text
    assert post(team, ACT, {"id": [other], "act": "delete"}, ada).status == 303
    assert post(team, ACT, {"id": [other], "act": "stop"}, ada).status == 303
    assert not team.row(other).deleted and not team.row(other).stop_requested
    label(team, [other], bob, favorite=True, note="mine")
    seen = team.call("GET", f"/execs/{other}", headers=DETAILS).json()
    assert seen["note"] == "mine" and "favorite" not in seen
    assert team.call("GET", "/execs/labels", token=ada).json() == []


def test_selected_runs_are_stopped_tagged_and_deleted(live: Live) -> None:
    names = [submit(live, f"run-{number}") for number in range(4)]
    live.run_on(names[0], "cpu-0")
    finish(live, names[1], 1, 0)
    both = {"id": names[:2], "query": "sort=name"}
    answer = post(live, ACT, {**both, "act": "tag", "tag": "new, x"})
    assert (answer.status, answer.headers["location"]) == (303, f"{RUNS}?sort=name")
    assert ids(get(live, f"{RUNS}?find=tag:new+tag:x")) == [names[1], names[0]]
    post(live, ACT, {**both, "act": "untag", "tag": "x"})
    assert ids(get(live, f"{RUNS}?find=tag:x")) == [] and len(ids(get(live, f"{RUNS}?find=tag:new"))) == 2
    post(live, ACT, {**both, "act": "stop"})
    assert live.row(names[0]).stop_requested and not live.row(names[2]).stop_requested
    woken = live.supervisor.woken
    post(live, ACT, {"id": [*names[1:3], "local-99", "x"], "act": "delete"})
    assert ids(get(live, RUNS)) == [names[3], names[0]] and live.supervisor.woken > woken
    to = post(live, ACT, {"id": [names[0], names[3]], "act": "compare"})
    assert to.headers["location"] == f"{RUNS}/compare?id={names[0]}&id={names[3]}"
    post(live, ACT, {"favorite": names[3]})
    assert ids(get(live, f"{RUNS}?favorites=1")) == [names[3]]
    post(live, ACT, {"favorite": names[3]})
    assert ids(get(live, f"{RUNS}?favorites=1")) == []


def test_a_form_that_lacks_something_is_refused(live: Live) -> None:
    name = submit(live, "one")
    for form, code in (({"act": "stop"}, "console.form"), ({"id": name}, "console.form"),
                       ({"id": name, "act": "tag"}, "console.form"),
                       ({"id": name, "act": "tag", "tag": "-x"}, "labels.tag"),
                       ({"id": name, "act": "fly"}, "console.form")):
        assert post(live, ACT, form).error == (400, code), form
    assert post(live, ACT, {"id": name, "act": "delete"}, csrf="wrong").error == (403, "console.csrf")
    assert not live.row(name).deleted


@pytest.mark.parametrize(("change", "code"), [
    ({"add": ["a b"]}, "labels.tag"), ({"add": [""]}, "labels.tag"), ({"add": ["x" * 41]}, "labels.tag"),
    ({"add": ["a,b"]}, "labels.tag"), ({"add": ["\ud800"]}, "body.json"), ({"add": ["a\x00"]}, "labels.tag"),
    ({"note": "x" * 10001}, "labels.note"), ({"note": "\x1b[2J"}, "labels.note"), ({"ids": []}, "labels.ids"),
    ({"ids": ["local-99"]}, "exec.not_found"), ({"ids": ["../x"]}, "exec.not_found"), ({"add": "x"}, "body.value"),
    ({"note": 7}, "body.value"), ({"favorite": "yes"}, "body.value"), ({"add": ["x"] * 31}, "body.value"),
])
def test_impossible_labels_are_refused(live: Live, change: dict[str, Any], code: str) -> None:
    name = submit(live, "one")
    label(live, [name], add=["kept"], note="kept")
    assert label(live, **{"ids": [name], **change}).error == (400, code)
    one = live.call("GET", f"/execs/{name}", headers=DETAILS).json()
    assert (one["tags"], one["note"]) == (["kept"], "kept")


def test_a_deleted_run_leaves_no_labels(live: Live) -> None:
    name = submit(live, "one")
    label(live, [name], add=["x"], note="y", favorite=True)
    assert live.call("DELETE", f"/execs/{name}").status == 204
    assert live.call("GET", "/execs/labels").json() == []
    live.forget(name)
    tables = ("exec_tags", "exec_notes", "favorites", "exec_texts")
    for table in tables:
        query = f"SELECT count(*) FROM {table}"
        assert live.database.read(lambda c, q=query: c.exec_driver_sql(q).scalar()) == 0


def test_the_page_of_a_run_shows_and_changes_its_labels(live: Live) -> None:
    name = submit(live, "one")
    place = f"{RUNS}/{name}"
    labelled = post(live, f"{place}/labels", {"tags": "best, <b>", "note": "first\r\n<i>second</i>"})
    assert labelled.headers["location"] == place
    assert post(live, f"{place}/labels", {"favorite": "1"}).status == 303
    text = get(live, place).text
    assert "<i>second" not in text and "first\n&lt;i&gt;second&lt;/i&gt;</p>" in text
    assert re.findall(r'class="tag" href="[^"]*">([^<]*)<', text) == ["&lt;b&gt;", "best"]
    assert 'aria-pressed="true" aria-label="Favorite"' in text
    post(live, f"{place}/labels", {"tags": "best new", "note": ""})
    one = live.call("GET", f"/execs/{name}", headers=DETAILS).json()
    assert (one["tags"], one.get("note"), one["favorite"]) == (["best", "new"], None, True)
    assert post(live, f"{place}/labels", {"tags": 'a"b'}).error == (400, "labels.tag")
    assert post(live, f"{place}/labels", {"tags": "x"}, csrf="").error == (403, "console.csrf")
    assert post(live, f"{RUNS}/local-9/labels", {"tags": "x"}).error == (400, "exec.not_found")


def test_the_table_shows_held_and_wanted_slots(live: Live) -> None:
    run = live.submitted("--exec-start edtPyTorch --model-main main.py --numWorker 2")
    assert column(live, run, 6) == "2"
    live.run_on(run, "cpu-0")
    assert column(live, run, 6) == "1 of 2"
    live.move(run, FINISHED)
    assert column(live, run, 6) == "2"
    pairs = live.submitted("--exec-start PyTorch --model-main main.py --workerDeviceNum 2")
    assert column(live, pairs, 6) == "2", "slots, not workers"


@pytest.mark.parametrize(("begin", "end", "shown"), [
    (100.9, 102.1, "2 s"), (100.1, 101.9, "1 s"), (100.0, 160.0, "1 min 0 s")])
def test_durations_are_those_of_the_command_line(live: Live, begin: float, end: float, shown: str) -> None:
    run = submit(live, "timed")
    live.move(run, PENDING, RUNNING, start_time=begin)
    live.move(run, FINISHED, end_time=end)
    told = live.call("GET", f"/execs/{run}").json()
    ends, begins = (datetime.fromisoformat(told[name].replace("Z", "+00:00")) for name in ("endTime", "startTime"))
    assert live.row(run).seconds(0.0) == (ends - begins).total_seconds()
    assert column(live, run, 5) == shown and f"took {shown}" in words(get(live, f"{RUNS}/{run}"))


def column(live: Live, run: str, number: int) -> str:
    """Return the text of a cell in the row of a run."""
    row = get(live, RUNS).text.partition(f'<tr id="run-{run}">')[2].partition("</tr>")[0]
    found = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", found[number]).split())


def test_a_csv_file_says_when_it_leaves_runs_out(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        submit(live, name)
    assert "Download as CSV" in words(get(live, RUNS))
    monkeypatch.setattr(runs_csv, "MOST", 2)
    assert "Download the first 2 runs as CSV" in words(get(live, RUNS))
    assert [row[1] for row in csv.reader(io.StringIO(get(live, f"{RUNS}.csv").text, newline=""))] == [
        "name", "three", "two"]


def test_the_runs_that_match_are_a_csv_file(live: Live) -> None:
    rates = (("one", "0.1"), ("=two", "0.2"), ("other", "0.3"))
    runs = [submit(live, name, "--lr", rate, f"mode={name}") for name, rate in rates]
    for run in runs:
        live.move(run, PENDING, RUNNING)
        live.move(run, FINISHED, progress=json.dumps({"lastMetrics": {"val/f1": {"value": 0.5, "step": 1}}}))
    labels = {"ids": runs[:1], "add": ["best", "new"], "note": 'a "b"\nc'}
    live.call("POST", wire.LABELS, json.dumps(labels).encode(), {"Content-Type": "application/json"}, base="")
    assert f'href="{RUNS}.csv?find=lr%3C0.3&amp;sort=param.lr"' in get(live, f"{RUNS}?find=lr%3C0.3&sort=param.lr").text
    answer = get(live, f"{RUNS}.csv?find=lr%3C0.3&sort=param.lr")
    assert answer.headers["content-disposition"] == 'attachment; filename="runs.csv"'
    head, first, second = csv.reader(io.StringIO(answer.text, newline=""))
    assert head[:4] == ["id", "name", "user", "state"] and head[-5:] == [
        "tags", "note", "param.lr", "param.mode", "metric.val/f1"]
    assert (first[:2], first[-5:]) == ([runs[0], "one"], ["best new", 'a "b"\nc', "0.1", "one", "0.5"])
    assert (second[1], second[-2]) == ("'=two", "'=two")
    assert get(live, f"{RUNS}.csv?find=f1%3Ex").status == 400
