"""Every option that takes a number: what is none, or too much, is refused by a line with its name and its bounds, by
the command line and by the server, which cannot know what sends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import run
from live_server import Live, settings_for
from odd_numbers import BOUNDS, taking_numbers, values

from dlicmd.contract.exits import Exit
from dlicmd.contract.options import COMMANDS, Kind, Option, Travel

START = ["--exec-start", "distPyTorch", "--model-main", "main.py"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("numbers") / "home"))
    yield running
    running.close()


def names_bounds(option: Option, text: str) -> bool:
    """Whether a refusal names the option and what it takes."""
    return f"{option.name}: " in text and any(bounds in text for bounds in BOUNDS[option.kind])


def test_there_are_many_of_them() -> None:
    assert len(taking_numbers()) >= 15
    assert len({option.kind for option in taking_numbers()}) == len(BOUNDS), "one of each kind"


@pytest.mark.parametrize("option", taking_numbers(), ids=lambda option: option.name)
def test_on_the_command_line(desk: Path, option: Option) -> None:
    for value, fine in values(option):
        words = [f"{option.name}={value}"] if option in COMMANDS else [
            "--exec-start", "distPyTorch", "--model-dir", "model", f"{option.name}={value}", "--dry-run"]
        if fine and (option in COMMANDS or option.kind is Kind.PORT):
            continue  # what it does then is for other tests
        code, _, err = run(*words)
        assert code == (Exit.DONE if fine else Exit.USAGE), (value, code, err)
        assert fine or (names_bounds(option, err) or not value), (value, err)
        assert fine or err.endswith("Try 'dlicmd --help'.\n"), (value, err)


@pytest.mark.parametrize(
    "option", [option for option in taking_numbers() if option.travel is Travel.ARGS and option not in COMMANDS],
    ids=lambda option: option.name)
def test_on_the_server(live: Live, option: Option) -> None:
    for value, fine in values(option):
        argv = [*START, f"{option.name}={value}"]
        answer = live.submit("", {"main.py": b"1"}, json.dumps({"argv": argv}))
        assert answer.status == (200 if fine else 400), (value, answer)
        if fine:
            live.forget(answer.json()["id"])
            continue
        assert answer.text.startswith("Error 400: ") and (names_bounds(option, answer.text) or not value), answer
    assert live.nothing_left()


FIELDS = {"num_nodes": "between 1 and", "gpu.num_gpu": "between 0 and", "mem.size": "at most 1024"}
#: As JSON, which has more kinds of values than a command line.
ODD = ["-1", "1.5", "1e400", "1.0001e3", "NaN", "true", "[]", "[1]", "{}", '"NaN"', '"１"', '"-1"', '"0x10"', '"1e3"',
       '"½"', '"lots"', "10000000000", "1" + "0" * 400, '"9999999999999"', "-0.5", '" "']


@pytest.mark.parametrize("field", FIELDS)
def test_in_a_hardware_spec(live: Live, field: str) -> None:
    for value in ODD:
        nested = value
        for name in reversed(field.split(".")):
            nested = f'{{"{name}": {nested}}}'
        data = f'{{"hardwareSpec": {{"nodes": {nested}}}}}'
        answer = live.submit(" ".join(START), {"main.py": b"1"}, data)
        assert answer.status == 400, (field, value, answer)
        assert answer.headers["x-dli-error-code"] in ("submission.hardware", "submission.data_part"), answer
        assert answer.text.startswith("Error 400: ") and answer.text.count("\n") == 1, answer
        if value in ("-1", "10000000000") and field != "mem.size":
            assert FIELDS[field] in answer.text, answer
    assert live.nothing_left()


def test_as_many_as_can_be_asked_for(live: Live) -> None:
    """It waits, or is told that it never runs; what it asks for, multiplied, is still a number."""
    most = ["--numWorker", "1000000000", "--workerDeviceNum", "1000000000", "--workerMemory", "1024t",
            "--msd-priority", "1000000000", "--msd-pending-timeout", "1000000000"]
    answer = live.submit("", {"main.py": b"1"}, json.dumps({"argv": [*START, *most]}))
    assert answer.status == 200, answer
    exec_id = answer.json()["id"]
    of_it = [f"/execs/{exec_id}{path}" for path in ("", "/why", "/code", "/metrics", "/follow?wait=0", "/log")]
    for path in (*of_it, "/scheduler/applications", "/scheduler/slots", "/scheduler/kubernetesobjects?type=paralleljob",
                 "/scheduler/kubernetesobjects?type=pod", "/scheduler/engine/applications", "/status"):
        assert live.call("GET", path).status == 200, path
    live.forget(exec_id)
