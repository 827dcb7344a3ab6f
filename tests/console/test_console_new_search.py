"""The form that starts a search: of the code of a run, and of a model definition."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import TOKEN, Answer, Live, multipart
from page_desk import Fields, get, post, words
from searching import Searching, searching
from starlette.datastructures import FormData
from visitor import Page

from dlicmd.contract.program_words import parameters_in, placed
from dlicmd.sdk.search_space import Short, definition, pairs
from local_backend.api.guard import SESSION
from local_backend.console import places
from local_backend.console.search_form import checked, form_of
from local_backend.console.sessions import csrf_of
from local_backend.store import searches

FORM: dict[str, Any] = {"parameter": ["lr", "batch", ""], "values": ["log:1e-4..1e-1", "32,64", ""], "words": "",
                        "metric": "loss", "direction": "", "algorithm": "Random", "trials": "3", "parallel": "2",
                        "minutes": "", "resource": "", "name": "s", "op": "start"}


@pytest.fixture
def search(live: Live) -> Iterator[Searching]:
    with searching(live) as found:
        yield found


def of(run: str) -> str:
    return f"{places.NEW_SEARCH}?run={run}"


def row_of(live: Live, name: str = "s") -> Any:
    found = live.database.read(lambda c: searches.named(c, name, live.settings.user))
    assert found is not None
    return found


def submitted(live: Live, words: str = "--lr 0.1 batch=8 --epochs=2") -> str:
    return live.submitted(f"--exec-start PyTorch --model-main main.py --appName digits -- {words}",
                          files={"main.py": b"print(1)\n"})


def inputs(page: Answer, name: str) -> list[str]:
    return [one.get("value", "") for one in Page(page.text).all("input") if one.get("name") == name]


def test_a_search_of_a_run_has_its_code_and_its_parameters(live: Live, search: Searching) -> None:
    run = submitted(live)
    page = get(live, of(run))
    assert page.status == 200 and inputs(page, "parameter") == ["lr", "batch", "epochs"]
    assert "in the run: 0.1" in words(page)
    answer = post(live, of(run), FORM | {"words": "--lr 0.1 batch=8 --epochs=2"})
    assert (answer.status, answer.headers["location"]) == (303, f"{places.SEARCHES}/s")
    row = row_of(live)
    found = json.loads(row.definition)
    assert [(one["name"], one["data"]) for one in found["parameters"]] == [("lr", "DOUBLE"), ("batch", "INT")]
    assert (found["metric"], found["maximize"], found["max_experiments"], found["parallel"]) == ("loss", False, 3, 2)
    assert row.bundle == live.row(run).bundle
    execs = search.running(2)
    program = live.row(execs[0]).workload.program
    assert set(program.parameters or {}) == {"lr", "batch"}
    given = parameters_in(program.arguments)
    assert given["epochs"] == "2" and float(given["lr"]) == program.parameters["lr"]  # type: ignore[index]
    assert given["batch"] in ("32", "64")
    assert live.row(execs[0]).app_name == "s 0" and live.row(execs[0]).workload.repeats is None


def test_a_search_of_a_model_definition_has_its_command(live: Live, search: Searching) -> None:
    body, kind = multipart([("new-name", None, b"net"), ("new-command", None, b"train.py --lr 0.5"),
                            ("new-framework", None, b"PyTorch"), ("file", "train.py", b"print(1)\n")])
    made = live.call("POST", places.DEFINITIONS, body, {"Content-Type": kind, **_session()}, token=None, base="")
    assert made.status in (204, 303), made.text
    label = f"{live.settings.user}/net"
    page = get(live, f"{places.DEFINITIONS}/{label}")
    [link] = [one["href"] for one in Page(page.text).all("a") if one.get("href", "").startswith(places.NEW_SEARCH)]
    form = get(live, link)
    assert inputs(form, "parameter") == ["lr"] and "in the definition: 0.5" in words(form)
    answer = post(live, link, FORM | {"parameter": ["lr"], "values": ["0.1..0.2"], "words": "--lr 0.5"})
    assert answer.status == 303, words(answer)
    [exec_id, _] = search.running(2)
    program = live.row(exec_id).workload.program
    assert program.main == "train.py" and 0.1 <= float(parameters_in(program.arguments)["lr"]) <= 0.2


def _session() -> dict[str, str]:
    return {"Cookie": f"{SESSION}={TOKEN}", "X-CSRF-Token": csrf_of(TOKEN)}


@pytest.mark.parametrize(("changes", "place"), [
    ({"values": ["9..1", "", ""]}, "parameter-0"), ({"values": ["1..9", "1-9", ""]}, "parameter-1"),
    ({"values": ["", "", ""]}, "parameter-0"), ({"values": ["1..9", "32,64", "1..2"]}, "parameter-2"),
    ({"parameter": ["lr", "lr", ""]}, "parameter-1"), ({"metric": ""}, "metric"), ({"trials": "0"}, "trials"),
    ({"trials": "x"}, "trials"), ({"parallel": "-1"}, "parallel"), ({"parallel": "20000"}, "form"),
    ({"minutes": "1.5"}, "minutes"), ({"resource": "epochs"}, "resource"), ({"algorithm": "ASHA"}, "resource"),
    ({"algorithm": "none"}, "algorithm"), ({"words": "--size {batchh}"}, "form"),
    ({"name": "a/b"}, "form"),
])
def test_each_mistake_is_said_beside_its_field(live: Live, changes: dict[str, Any], place: str) -> None:
    run = submitted(live, "--epochs 1")
    answer = post(live, of(run), FORM | changes)
    assert answer.status == 400
    if place == "form":
        assert 'class="notice bad"' in answer.text and "The search was not started" not in words(answer)
    else:
        assert f'id="problem-{place}"' in answer.text and f'aria-describedby="problem-{place}"' in answer.text
    if "metric" not in changes:
        assert inputs(answer, "metric") == ["loss"], "the form keeps what was typed"
    assert live.database.read(lambda c: searches.named(c, "s", live.settings.user)) is None


def test_a_name_that_exists_is_said_beside_it(live: Live, search: Searching) -> None:
    run = submitted(live, "")
    assert post(live, of(run), FORM).status == 303
    answer = post(live, of(run), FORM)
    assert answer.status == 400 and 'id="problem-name"' in answer.text


def test_a_row_is_added_without_a_start(live: Live) -> None:
    run = submitted(live)
    answer = post(live, of(run), FORM | {"op": "add"})
    assert answer.status == 200 and inputs(answer, "parameter") == ["lr", "batch", "", ""]
    assert inputs(answer, "values")[:2] == ["log:1e-4..1e-1", "32,64"]


@pytest.mark.parametrize("changes", [
    {}, {"direction": "maximize", "minutes": "30", "name": "a b"},
    {"algorithm": "ASHA", "resource": "epochs:27"},
    {"algorithm": "Grid", "values": ["0..1/0.5", "1,2", ""], "trials": ""},
])
def test_the_command_starts_the_same_search(live: Live, changes: dict[str, Any]) -> None:
    run = submitted(live)
    form: Fields = FORM | {"words": "--lr 0.1 batch=8 --epochs=2"} | changes
    page = post(live, f"{places.NEW_SEARCH}/preview?run={run}", form)
    [copied] = [one["data-copy"] for one in Page(page.text).all("button") if "data-copy" in one]
    assert "<html" not in page.text
    line = shlex.split(copied)
    assert line[:4] == ["dlicmd", "search", "--job", run]
    after = line.index("--")
    assert line[after + 1:] == ["--lr", "{lr}", "batch={batch}", "--epochs=2"]
    options: dict[str, list[str]] = {}
    for name, value in zip(line[4:after:2], line[5:after:2], strict=True):
        options.setdefault(name, []).append(value)

    def number(name: str) -> int | None:
        return int(options[name][0]) if name in options else None

    def text(name: str) -> str | None:
        return options.get(name, [None])[0]

    meant = definition(Short(
        pairs(options["--param"]), options["--metric"], number("--trials"), number("--parallel"), number("--minutes"),
        text("--algorithm"), text("--resource"), name=text("--name")), "")
    del meant["modelSpec"]
    asked = checked(form_of(FormData([(name, one) for name, value in form.items() for one in (
        [value] if isinstance(value, str) else value)])))
    assert meant["algoDef"].pop("algorithm").lower() == asked.definition["algoDef"].pop("algorithm").lower()
    assert meant == asked.definition and not asked.problems


def test_incomplete_forms_have_no_command(live: Live) -> None:
    run = submitted(live)
    assert "The command appears here" in words(get(live, of(run)))


def test_the_code_of_another_user_is_no_source(team: Live) -> None:
    run = team.submitted(token=team.add_user("bob"))
    eve = team.add_user("eve")
    for answer in (get(team, of(run), eve), post(team, of(run), FORM, eve),
                   post(team, f"{places.NEW_SEARCH}/preview?run={run}", FORM, eve)):
        assert answer.error == (400, "exec.not_found")


def test_code_is_chosen_first(live: Live) -> None:
    run = submitted(live)
    page = get(live, places.NEW_SEARCH)
    links = {one["href"] for one in Page(page.text).all("a")}
    assert of(quote(run)) in links
    assert places.NEW_SEARCH in {one["href"] for one in Page(get(live, places.SEARCHES).text).all("a")}
    assert of(run) in {one["href"] for one in Page(get(live, f"{places.RUNS}/{run}/settings").text).all("a")}


@pytest.mark.parametrize(("given_words", "expected"), [
    (["--lr", "0.1"], ["--lr", "{lr}"]), (["--lr=0.1"], ["--lr={lr}"]), (["lr=0.1"], ["lr={lr}"]),
    (["-lr", "-0.1"], ["-lr", "{lr}"]), (["--lr", "--verbose"], ["--lr", "--verbose"]), (["--lr"], ["--lr"]),
    (["--rate", "{lr}", "--lr", "0.1"], ["--rate", "{lr}", "--lr", "0.1"]), (["--other", "1"], ["--other", "1"]),
])
def test_parameters_take_the_places_of_their_values(given_words: list[str], expected: list[str]) -> None:
    assert placed(given_words, ["lr"]) == expected


@given(st.lists(st.text(max_size=8), max_size=6))
def test_other_words_stay(some: list[str]) -> None:
    assert placed(some, []) == some and len(placed(some, list(parameters_in(some)))) == len(some)
