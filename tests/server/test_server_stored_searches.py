"""Searches of code that the server has already: their definition names an exec or a model definition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_server import Live, multipart
from searching import RATE, Searching, definition, searching

from dlicmd.contract.program_words import parameters_in


@pytest.fixture
def team(start: Callable[..., Live]) -> Live:
    return start(embedded=False, jobs_share_server_account=True)


@pytest.fixture
def search(live: Live) -> Iterator[Searching]:
    with searching(live) as found:
        yield found


def of_code(**spec: Any) -> dict[str, Any]:
    return {**definition(), "modelSpec": spec}


def submitted(live: Live, token: str | None = None) -> str:
    more = {} if token is None else {"token": token}
    return live.submitted("--exec-start PyTorch --model-main main.py --msd-env A=b -- --rate 0.5 --epochs=3",
                          files={"main.py": b"print(1)\n"}, **more)


def defined(live: Live) -> None:
    """Save two versions of a model definition."""
    for command in ("train.py --rate 0.5", "train.py --rate 0.6 --size 8"):
        value = json.dumps({"name": "net", "framework": "edtPyTorch", "command": command})
        body, kind = multipart([("data", None, value.encode()), ("file", "train.py", b"print(1)\n")])
        answer = live.call("POST", "/definitions", body, {"Content-Type": kind})
        assert answer.status in (200, 201), answer.text


def test_a_search_of_an_exec_puts_the_parameters_into_its_words(live: Live, search: Searching) -> None:
    run = submitted(live)
    assert search.post(of_code(exec=run), files={}).status == 200
    [first, _] = search.running(2)
    workload, stored = live.row(first).workload, live.row(run).workload
    given = parameters_in(workload.program.arguments)
    assert given["epochs"] == "3" and float(given["rate"]) == workload.program.parameters["rate"]  # type: ignore[index]
    assert workload.program.bundle == stored.program.bundle
    assert workload.environment == stored.environment and workload.repeats is None


@pytest.mark.parametrize(("args", "expected"), [
    ("--rate {rate} --fast", ["--rate", "--fast"]), ("", []), ("--fast", ["--fast"]),
])
def test_other_words_replace_those_of_the_exec(
    live: Live, search: Searching, args: str, expected: list[str]
) -> None:
    assert search.post(of_code(exec=submitted(live), args=args), files={}).status == 200
    [first, _] = search.running(2)
    assert [word for word in live.row(first).workload.program.arguments if word.startswith("--")] == expected


def test_a_search_of_a_definition_has_its_version_and_workers(live: Live, search: Searching) -> None:
    defined(live)
    assert search.post(of_code(definition="net", version=1, numWorker=2), files={}).status == 200
    assert search.post({**of_code(definition="net", args="--rate {rate} --deep"), "hpoName": "t"},
                       files={}).status == 200
    [first, _], [other, _] = search.running(2), search.running(2, "t")
    program = live.row(first).workload.program
    assert program.main == "train.py" and set(parameters_in(program.arguments)) == {"rate"}
    assert live.row(first).workload.resources.num_worker == 2
    assert [*live.row(other).workload.program.arguments][-1] == "--deep"


@pytest.mark.parametrize(("spec", "code"), [
    ({"exec": "local-999"}, "exec.not_found"), ({"definition": "none"}, "definition.not_found"),
    ({"definition": "net", "version": 9}, "definition.not_found"), ({"exec": 3}, "search.definition"),
    ({"exec": "x", "definition": "net"}, "search.definition"),
    ({"definition": "net", "version": 0}, "search.definition"),
    ({"definition": "net", "numWorker": "many"}, "search.definition"), ({"exec": ""}, "search.definition"),
    ({"exec": "RUN", "args": 5}, "search.definition"), ({"exec": "RUN", "numWorker": 2}, "search.definition"),
    ({"exec": "RUN", "args": "--other {ratee}"}, "search.definition"),
    ({"exec": "RUN", "args": "--rate {ratee}"}, "search.definition"),
])
def test_wrong_code_is_refused(live: Live, search: Searching, spec: dict[str, Any], code: str) -> None:
    defined(live)
    run = submitted(live)
    answer = search.post(of_code(**{key: run if value == "RUN" else value for key, value in spec.items()}), files={})
    assert answer.error[1] == code
    assert live.call("GET", "/hypersearch").json() == []


def test_code_comes_from_one_place(live: Live, search: Searching) -> None:
    assert search.post(of_code(exec=submitted(live))).error == (400, "search.definition")


def test_the_code_of_another_user_cannot_be_searched(team: Live) -> None:
    bob, eve = team.add_user("bob"), team.add_user("eve")
    run = submitted(team, bob)
    answer = Searching(team).post(of_code(exec=run), files={}, token=eve)
    assert answer.error == (400, "exec.not_found")


def test_a_listed_parameter_has_its_place(live: Live, search: Searching) -> None:
    asked = of_code(exec=submitted(live))
    asked["algoDef"]["algorithm"] = "Grid"
    asked["hyperParams"] = [{**RATE, "type": "Discrete", "discreteDbVal": [0.1, 0.2]}]
    assert search.post(asked, files={}).status == 200
    found = [parameters_in(live.row(one).workload.program.arguments)["rate"] for one in search.running(2)]
    assert found == ["0.1", "0.2"]
