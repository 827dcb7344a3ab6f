"""The columns of the table of runs for metrics and parameters: which there are without a choice, and their choice."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from live_server import TOKEN, Answer, Live
from page_desk import get, post, words

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.api.guard import SESSION
from local_backend.console import run_columns
from local_backend.console.run_columns import COOKIE

RUNS, CHOOSE = "/console/runs", "/console/runs/columns"
PART, CHOICE = "/console/runs/parts/table", "/console/runs/parts/columns"


def last(metrics: Mapping[str, float]) -> dict[str, Any]:
    return {"lastMetrics": {name: {"value": value, "step": 1} for name, value in metrics.items()}}


def submit(live: Live, *program: str, token: str = TOKEN) -> str:
    return live.submitted(f"--exec-start PyTorch --model-main main.py -- {' '.join(program)}", token=token)


def ended(live: Live, metrics: Mapping[str, float], *program: str, token: str = TOKEN) -> str:
    run = submit(live, *program, token=token)
    live.move(run, PENDING, RUNNING)
    live.move(run, FINISHED, progress=json.dumps(last(metrics)))
    return run


def headings(answer: Answer) -> list[str]:
    """Return the headings of the columns of values."""
    assert answer.status == 200
    return [words_of(one) for one in re.findall(r'<th scope="col" class="number value"[^>]*>(.*?)</th>', answer.text)]


def cells(answer: Answer, run: str) -> list[str]:
    """Return the values of a run."""
    row = answer.text.partition(f'<tr id="run-{run}">')[2].partition("</tr>")[0]
    return [words_of(one) for one in re.findall(r'<td class="number value">(.*?)</td>', row, re.DOTALL)]


def words_of(part: str) -> str:
    return re.sub(r"<[^>]*>", "", part).strip()


@pytest.mark.parametrize(("runs", "shown"), [
    ([], ["Loss", "Accuracy"]), ([{}], ["Loss", "Accuracy"]),
    ([{"loss": 1, "accuracy": 2, "f1": 3}], ["Loss", "Accuracy"]), ([{"val_loss": 1, "acc/accuracy": 2}],
                                                                   ["Loss", "Accuracy"]),
    ([{"loss": 1, "f1": 3, "grad_norm": 4}, {"grad_norm": 1}], ["Loss", "f1"]),
    ([{"loss": 1, "a": 3, "b": 4}, {"b": 1}], ["Loss", "b"]), ([{"loss": 1, "val_loss": 2}], ["Loss", "val_loss"]),
    ([{"reward": 1}], ["reward", "Accuracy"]), ([{"reward": 1, "length": 5}], ["reward", "length"]),
    ([{"f1": 1, "accuracy": 5}], ["f1", "Accuracy"]), ([{"loss": 1}], ["Loss", "Accuracy"]),
])
def test_without_a_choice_the_columns_fit_the_runs(live: Live, runs: list[dict[str, float]], shown: list[str]) -> None:
    names = [ended(live, metrics) for metrics in runs] or [submit(live)]
    page = get(live, RUNS)
    assert headings(page) == shown
    for name, metrics in zip(names, runs, strict=False):
        own = {"Loss": metrics.get("loss", metrics.get("val_loss")),
               "Accuracy": metrics.get("accuracy", metrics.get("acc/accuracy")), **metrics}
        assert cells(page, name) == ["" if own.get(one) is None else str(own[one]) for one in shown]


def test_the_newest_listed_runs_and_running_ones_decide(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_columns, "_DECIDING", 2)
    ended(live, {"accuracy": 0.5}, "old")
    ended(live, {"f1": 0.5})
    run = submit(live)
    assert headings(get(live, RUNS)) == ["f1", "Accuracy"]
    live.run_on(run, "cpu-0")
    live.say(run, last({"loss": 0.25, "bleu": 7}))
    page = get(live, RUNS)
    assert headings(page) == ["Loss", "bleu"] and cells(page, run) == ["0.25", "7"]
    assert headings(get(live, f"{RUNS}?find=old")) == ["Loss", "Accuracy"]


def test_a_page_that_follows_changes_keeps_its_columns(live: Live) -> None:
    run = ended(live, {"loss": 1, "f1": 2})
    followed = re.search(rf'hx-get="({re.escape(PART)}[?][^"]*)"', get(live, RUNS).text)
    assert followed is not None
    path = followed[1].replace("&amp;", "&")
    for _ in range(2):
        ended(live, {"loss": 1, "accuracy": 3, "auc": 4})
    assert headings(get(live, path, part=True)) == ["Loss", "f1"]
    assert headings(get(live, RUNS)) == ["Loss", "Accuracy"], "a new page decides again"
    assert live.call("DELETE", f"/execs/{run}").status == 204
    assert headings(get(live, path, part=True)) == ["Loss", "Accuracy"], "no run has f1 any longer"
    rest = f"{PART}?find=accuracy%3E9&shown=metric.loss&shown=metric.auc"
    ended(live, {"auc": 4, "map": 1, "accuracy": 10})
    assert headings(get(live, rest, part=True)) == ["map", "auc"], "a column appears once"


def test_chosen_columns_are_in_the_address_and_sort(live: Live) -> None:
    first = ended(live, {"loss": 1, "f1": 0.5}, "--lr", "1e-3", "--opt", "sgd", "--amp")
    second = ended(live, {"f1": 0.75}, "--lr", "0.02", "--opt", "<b>")
    third = submit(live, "--lr", "abc")
    chosen = urlencode([("column", one) for one in (
        "param.lr", "metric.f1", "param.opt", "param.amp", "param.lr", "nonsense", "x.y", "")])
    page = get(live, f"{RUNS}?{chosen}")
    assert headings(page) == ["param.lr", "f1", "param.opt", "param.amp"]
    assert cells(page, first) == ["1e-3", "0.5", "sgd", "yes"] and cells(page, third) == ["abc", "", "", ""]
    assert cells(page, second)[2] == "&lt;b&gt;" and "<b>" not in page.text
    for query, order in (
            ("param.lr", [first, second, third]), ("param.lr&back=1", [second, first, third]),
            ("metric.f1", [second, first, third]), ("metric.f1&back=1", [first, second, third]),
            ("param.opt", [second, first, third]), ("param.opt&back=1", [first, second, third]),
            ("metric.loss&back=1", [first, second, third])):
        found = get(live, f"{RUNS}?{chosen}&sort={query}").text
        assert re.findall(r'<tr id="run-([^"]+)"', found) == order and 'aria-sort="' in found, query
    assert headings(get(live, f"{RUNS}?{chosen}&sort=metric.loss"))[-1] == "Loss ▲", "what sorts has a column"
    assert f'href="{RUNS}?sort=metric.f1&amp;column=param.lr' in page.text
    assert "column=param.lr" in get(live, f"{PART}?searched=1&{chosen}", part=True).headers["hx-replace-url"]
    for text, expected in (("f1", True), ("los", False), ("zzz", True), ("", False)):
        found = words(get(live, f"{CHOICE}?{chosen}&list=1&name={text}", part=True))
        assert ("No other value" in found) == expected, text
    assert len(headings(get(live, f"{RUNS}?" + "&".join(f"column=metric.m{one}" for one in range(30))))) == 20


def test_the_browser_keeps_the_choice(live: Live) -> None:
    ended(live, {"f1": 1}, "--lr", "1")
    done = post(live, CHOOSE, {"act": "choose", "column": ["metric.f1", "param.lr", "x"], "query": "find=local&page=2"})
    assert (done.status, done.headers["location"]) == (303, f"{RUNS}?find=local&column=metric.f1&column=param.lr")
    cookie = done.headers["set-cookie"]
    assert all(one in cookie.lower() for one in ("httponly", "samesite=strict", f"path={RUNS}", "max-age=3"))
    kept = {"Cookie": f"{SESSION}={TOKEN}; {cookie.partition(';')[0]}"}

    def visited(path: str) -> Answer:
        return live.call("GET", path, b"", kept, token=None, base="")

    again = visited(f"{RUNS}?state=finished")
    assert (again.status, again.headers["location"]) == (
        303, f"{RUNS}?state=finished&column=metric.f1&column=param.lr")
    assert headings(visited(f"{RUNS}?column=param.lr")) == ["param.lr"], "an address counts before the choice"
    for fields in ({"act": "default", "column": "metric.f1"}, {"act": "choose"},
                   {"act": "choose", "column": [f"metric.{'ä' * 90}{one}" for one in range(20)]}):
        default = post(live, CHOOSE, fields)
        assert default.status == 303 and f'{COOKIE}="";' in default.headers["set-cookie"]
        assert "Max-Age=0" in default.headers["set-cookie"]
    assert post(live, CHOOSE, {"act": "choose", "column": "metric.f1"}, csrf="").error == (403, "console.csrf")
    many = {"act": "choose", "column": [f"metric.m{one}" for one in range(21)]}
    assert post(live, CHOOSE, many).error == (400, "console.form"), "none is left out without a word"
    assert visited(RUNS).headers["location"].startswith(RUNS)
    odd = {"Cookie": f"{SESSION}={TOKEN}; {COOKIE}=%00=&column=x;"}
    assert live.call("GET", RUNS, b"", odd, token=None, base="").status == 200


def names(answer: Answer) -> list[tuple[str, str, bool]]:
    """Return the names in the dialog with the number of their runs, and whether they are chosen."""
    assert answer.status == 200
    found = re.findall(r'value="([^"]*)"( checked)?>.*?small">([^<]*)<', answer.text)
    return [(name, count, bool(chosen)) for name, chosen, count in found]


def test_the_dialog_offers_the_names_of_the_listed_runs(live: Live) -> None:
    for number in range(3):
        ended(live, {"f1": 1, **({"rare": 1} if number == 2 else {})}, "--lr", "1", f"--n{number}")
    run = submit(live, "--lr", "2")
    live.run_on(run, "cpu-0")
    live.say(run, last({"live": 1}))
    frequent = [("param.lr", "4", False), ("metric.f1", "3", False)]
    rare = [("metric.rare", "1", False), *((f"param.n{one}", "1", False) for one in range(3)),
            ("metric.live", "1", False)]
    assert names(get(live, CHOICE, part=True)) == [*frequent, *rare]
    shown = get(live, f"{CHOICE}?shown=metric.f1&shown=metric.loss", part=True)
    assert names(shown)[:3] == [("metric.f1", "3", True), ("metric.loss", "0", True), frequent[0]]
    chosen = names(get(live, f"{CHOICE}?list=1&shown=metric.f1&column=param.lr&name=R", part=True))
    assert chosen == [("param.lr", "4", True), ("metric.rare", "1", False)]
    assert names(get(live, f"{CHOICE}?find=f1%3E2", part=True)) == []
    assert names(get(live, f"{CHOICE}?find=f1%3Ex", part=True))[0] == ("param.lr", "4", False), "an unfinished search"
    assert ("metric.live", "1", False) not in names(get(live, f"{CHOICE}?state=finished", part=True))


def test_many_names_are_found_by_name(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_columns, "_OFFERING", 1)
    monkeypatch.setattr(run_columns, "_MOST_OFFERED", 2)
    ended(live, {"Old": 1})
    ended(live, {"a1": 1, "a2": 1, "a3": 1, "b": 1})
    first = get(live, CHOICE, part=True)
    assert [name for name, _, _ in names(first)] == ["metric.a1", "metric.a2"] and "2 more" in words(first)
    assert [name for name, _, _ in names(get(live, f"{CHOICE}?list=1&name=b", part=True))] == ["metric.b"]
    assert [name for name, _, _ in names(get(live, f"{CHOICE}?list=1&name=old", part=True))] == ["metric.Old"]
    assert [name for name, _, _ in names(get(live, f"{CHOICE}?list=1&name=metric.OLD", part=True))] == ["metric.Old"]
    assert "No value of the listed runs" in words(get(live, f"{CHOICE}?list=1&name=none%00", part=True))


@pytest.mark.parametrize(("find", "sentence"), [
    ("none>1", "No run that has ended has the metric none. No run has the parameter none."),
    ("f1>0 metric.lr<1", "No run that has ended has the metric lr."), ("param.f1<1", "No run has the parameter f1."),
    ("f1>9", "No runs match."), ("-none>1 f1>9", "No runs match."), ("lr<1 state:error", "No runs match."),
])
def test_a_search_for_an_unknown_name_says_so(live: Live, find: str, sentence: str) -> None:
    ended(live, {"f1": 1}, "--lr", "2")
    assert sentence in words(get(live, f"{RUNS}?find={quote(find)}"))


def test_the_values_of_other_users_are_theirs(team: Live) -> None:
    ada, bob = team.add_user("ada"), team.add_user("bob")
    ended(team, {"secret": 1}, "--hidden", "1", token=bob)
    ended(team, {"f1": 1}, token=ada)
    assert headings(get(team, RUNS, token=ada)) == ["f1", "Accuracy"]
    for path in (CHOICE, f"{CHOICE}?list=1&name=secret", f"{CHOICE}?all=1"):
        assert "secret" not in [name.partition(".")[2] for name, _, _ in names(get(team, path, token=ada, part=True))]
    assert "No run has the parameter hidden." in words(get(team, f"{RUNS}?find=hidden%3E0", token=ada))
    assert team.call("GET", "/execs?sort_by=secret", token=ada).error == (400, "query.sort")


def test_a_column_with_the_losses_of_several_names_says_them(live: Live) -> None:
    first, second = ended(live, {"loss": 1, "accuracy": 0.5}), ended(live, {"val_loss": 2, "accuracy": 0.25})
    both = get(live, RUNS)
    assert (cells(both, first), cells(both, second)) == (["loss 1", "0.5"], ["val_loss 2", "0.25"])
    assert cells(get(live, f"{RUNS}?find=val_loss%3E0"), second) == ["2", "0.25"]
