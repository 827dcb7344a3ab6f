"""Jobs that damage the files between their runner and the server. Other jobs are not affected."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from runtime_support import Bench, bench, host_bench

from dlicmd.contract.states import ERROR, FINISHED, TERMINAL
from local_backend.api.objects import iso
from local_backend.runtime.launch import read_attempt, read_identity, read_outcome, requeues
from local_backend.runtime.messages import Begun, from_runner, from_server, of_runner
from local_backend.runtime.paths import HomePaths
from local_backend.scheduler.model import Allocation

#: A program that damages the files of its exec, and kills its runner.
SABOTAGE = """
import json, os, pathlib, signal
state = pathlib.Path({home!r}) / "jobs" / os.environ["APP_ID"]
{deed}
os.kill(os.getppid(), signal.SIGKILL)
"""
DEEDS = {
    "a folder": "(state / 'exit.json').mkdir()",
    "a pipe": "os.mkfifo(state / 'exit.json')",
    "a link": "os.symlink('/dev/zero', state / 'exit.json')",
    "a state that is none": "(state / 'exit.json').write_text(json.dumps({'attempt': 1, 'state': [], 'end_time': 0}))",
    "numbers and texts that no database takes": (
        "(state / 'exit.json').write_text(json.dumps({'attempt': 1, 'state': 'FINISHED', 'end_time': 1.0, 'exit_code': "
        "2**80, 'signal': None, 'message': '\\ud800', 'reason': None, 'progress': {}}))"
    ),
    "a pid that is none": (
        "found = json.loads((state / 'runner.json').read_text()); "
        "(state / 'runner.json').write_text(json.dumps(found | {'pid': '\\0'}))"
    ),
}
#: Cases that every integration run tries with a new server, too.
OFTEN = {"a pipe", "a pid that is none"}


def submit(one: Bench, deed: str) -> str:
    return one.submit(SABOTAGE.format(home=str(one.settings.home), deed=DEEDS[deed]))


@pytest.mark.integration
@pytest.mark.parametrize("deed", DEEDS)
def test_a_job_with_damaged_records_ends_and_other_jobs_go_on(tmp_path: Path, deed: str) -> None:
    with bench(tmp_path, slots=1) as one:
        culprit, other = submit(one, deed), one.submit("print('done')")
        assert one.wait(culprit).state == ERROR
        assert one.row(culprit).reason == "LOST"
        assert one.wait(other).state == FINISHED


@pytest.mark.integration
@pytest.mark.parametrize("deed", [
    deed if deed in OFTEN else pytest.param(deed, marks=pytest.mark.slow) for deed in DEEDS
])
def test_a_new_server_starts_despite_damaged_records(tmp_path: Path, deed: str) -> None:
    with host_bench(tmp_path, slots=1) as (host, one):
        culprit = one.submit("import os\n" + SABOTAGE.format(
            home=str(one.settings.home), deed="open('ready', 'w').write('x')\nwhile not os.path.exists('go'): pass\n"
            + DEEDS[deed]))
        one.wait_for_file(culprit, "ready")
        host.kill()
        (one.paths(culprit).code(one.row(culprit).workload) / "go").touch()
        host.start()
        assert one.wait(culprit).state == ERROR
        assert one.wait(one.submit("print('done')")).state == FINISHED


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([*TERMINAL]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=5,
)
KEYS = (
    "pid", "start_time", "boot_id", "attempt", "state", "end_time", "exit_code", "signal", "message", "reason",
    "sequence", "slots", "held", "recovering", "workers", "usable", "requeues", "process", "why", "values", "outcome",
    "progress",
)


@given(st.dictionaries(st.sampled_from(KEYS), values) | values)
@example({"pid": True})
@example({"exit_code": True})
@example({"end_time": False})
@example({"end_time": 1e12})
@example({"end_time": 1e13})
@example({"reason": "x" * 41, "message": "a\0b"})
def test_records_with_any_json_are_read_or_rejected(tmp_path_factory, value) -> None:
    home = tmp_path_factory.getbasetemp()
    paths = HomePaths(home, home, home).job("local-1", "ada")
    paths.state.mkdir(parents=True, exist_ok=True)
    if isinstance(value, dict):
        value = {"attempt": 1, "pid": 1, "start_time": 1, "boot_id": "x", "state": FINISHED, "end_time": 1.0,
                 "exit_code": 0, "signal": None, "message": None, "reason": None, "progress": {}} | value
    for path in (paths.runner, paths.exit, paths.attempt, paths.spec):
        path.write_text(json.dumps(value))
    outcome, runner = read_outcome(paths, 1), read_identity(paths)
    assert outcome is None or (outcome.state in TERMINAL and (outcome.message or "").encode() is not None)
    assert outcome is None or (iso(outcome.end_time) and len(outcome.reason or "") <= 40)
    assert outcome is None or "\0" not in f"{outcome.reason}{outcome.message}{outcome.signal}"
    numbers = [] if outcome is None else [outcome.exit_code, outcome.end_time, outcome.attempt]
    assert not any(isinstance(number, bool) for number in numbers), "a database may not accept a bool as a number"
    assert runner is None or os.path.basename(f"/proc/{runner.pid}").isdigit()
    assert isinstance(read_attempt(paths), int)
    assert isinstance(requeues(paths), int)


@given(
    st.sampled_from(["begun", "refused", "held", "progress", "exit", "fly"]),
    st.dictionaries(st.sampled_from(KEYS), values),
)
@example("held", {"sequence": True})
@example("held", {"workers": ["x", -1]})
@example("begun", {"process": {"pid": -1, "start_time": 1}})
@example("progress", {"values": {"step": {}, "message": "a\nb", "note": 1}})
@example("exit", {"outcome": {"attempt": 2}})
def test_a_message_with_any_fields_is_read_or_rejected(event: str, junk: dict[str, object]) -> None:
    sound = {
        "process": {"pid": 1, "start_time": 1.0}, "why": "", "sequence": 0, "slots": [], "held": [], "workers": [],
        "recovering": False, "usable": None, "values": {},
        "outcome": {"attempt": 1, "state": FINISHED, "end_time": 1.0, "exit_code": 0, "signal": None, "message": None,
                    "reason": None, "progress": {}},
    }
    assert (from_runner({"event": event, **sound}, 1) is None) == (event == "fly")
    found = from_runner({"event": event, **sound, **junk}, 1)
    assert not isinstance(found, Begun) or found.process.pid > 0
    if found is not None and event != "begun":
        assert from_runner(json.loads(json.dumps(of_runner(found))), 1) == found, "not equal after sending"
    allocation = from_server({"op": "allocate", "sequence": 1, "slots": [], **junk})
    assert allocation is None or (
        isinstance(allocation, Allocation) and all(isinstance(slot.id, str) for slot in allocation.slots))
