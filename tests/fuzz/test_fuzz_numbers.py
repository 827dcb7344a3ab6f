"""Invalid values of numeric options are refused with the name and the bounds of the option.

Both the command line and the server check them, because other clients can send requests, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import run
from live_server import Live, settings_for
from odd_numbers import BOUNDS, taking_numbers, values

from dlicmd.contract.exits import Exit
from dlicmd.contract.options import COMMANDS, Form, Option, Travel

START = ["--exec-start", "distPyTorch", "--model-main", "main.py"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("numbers") / "home"))
    yield running
    running.close()


def names_bounds(option: Option, text: str) -> bool:
    """Return whether an error message names the option and its bounds."""
    return f"{option.name}: " in text and any(bounds in text for bounds in BOUNDS[option.kind])


def test_the_tests_cover_every_numeric_kind() -> None:
    assert len(taking_numbers()) >= 15
    assert len({option.kind for option in taking_numbers()}) == len(BOUNDS), "expected options of every numeric kind"


@pytest.mark.parametrize("option", taking_numbers(), ids=lambda option: option.name)
def test_the_command_line_refuses_invalid_numbers(desk: Path, option: Option) -> None:
    for value, fine in values(option):
        words = [f"{option.name}={value}"] if option in COMMANDS else [
            "--exec-start", "distPyTorch", "--model-dir", "model", f"{option.name}={value}", "--dry-run"]
        if fine and (option in COMMANDS or option.kind is Form.PORT):
            continue  # other tests cover the effect of these
        code, _, err = run(*words)
        assert code == (Exit.DONE if fine else Exit.USAGE), (value, code, err)
        assert fine or (names_bounds(option, err) or not value), (value, err)
        assert fine or err.endswith(f"Try 'dlicmd {words[0].partition('=')[0]} --help'.\n"), (value, err)


@pytest.mark.parametrize(
    "option", [option for option in taking_numbers() if option.travel is Travel.ARGS and option not in COMMANDS],
    ids=lambda option: option.name)
def test_the_server_refuses_invalid_numbers(live: Live, option: Option) -> None:
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
#: JSON has more kinds of values than a command line.
ODD = ["-1", "1.5", "1e400", "1.0001e3", "NaN", "true", "[]", "[1]", "{}", '"NaN"', '"１"', '"-1"', '"0x10"', '"1e3"',
       '"½"', '"lots"', "10000000000", "1" + "0" * 400, '"9999999999999"', "-0.5", '" "']


@pytest.mark.parametrize("field", FIELDS)
def test_a_hardware_spec_with_an_invalid_number_is_refused(live: Live, field: str) -> None:
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


def test_the_largest_valid_numbers_do_not_break_the_server(live: Live) -> None:
    """The job is pending or impossible; the products of its numbers still fit."""
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
