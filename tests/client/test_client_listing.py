"""The list of jobs, the page about a job, and the names of states and moments that users type."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fake_server import exec_object
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.cli.show.listing import lines
from dlicmd.cli.show.page import page, why_ended, why_running
from dlicmd.cli.show.table import column_width
from dlicmd.cli.show.times import moment
from dlicmd.contract import states
from dlicmd.sdk.objects import Files

LONG = "a very long name of an application " * 3
RAN = {"startTime": "2023-10-27T16:27:30Z", "endTime": "2023-10-27T16:27:38Z"}
VALUES = {"loss": {"value": 0.04651, "step": 230}, "accuracy": {"value": 0.98, "step": 230}}


def job(number: int = 1, **more: Any) -> dict[str, Any]:
    return exec_object(f"local-{number}", **more)


def row(found: list[str], at: int = 1) -> dict[str, str]:
    """Return the cells of a line by the headings of the table."""
    starts = [place for place, one in enumerate(found[0])
              if one != " " and (not place or found[0][place - 2:place] == "  ")]
    ends = [*starts[1:], None]
    return {found[0][start:end].strip(): found[at][start:end].strip() for start, end in zip(starts, ends, strict=True)}


def test_a_line_has_the_last_metric_and_how_long_the_job_ran() -> None:
    found = lines([job(state="FINISHED", lastMetrics=VALUES, arguments=["--epochs", "10"], **RAN)], None)
    cells = row(found)
    assert cells["metric"] == "loss 0.04651"
    assert (cells["took"], cells["state"], cells["note"]) == ("8s", "FINISHED", "--epochs 10")
    started = next(value for name, value in cells.items() if name.startswith("started"))
    assert started == time.strftime("%m-%d %H:%M", time.localtime(1698424050))


def test_a_line_has_the_step_of_the_metric_in_its_unit() -> None:
    last = {"loss": {"value": 0.5, "step": 3, "stepUnit": "epoch", "steps": 10},
            "Acc": {"value": 0.9, "step": 200, "stepUnit": "batch"}}
    counted = {"loss": {"value": 0.5, "step": 3, "stepUnit": "line"}}
    jobs = [job(lastMetrics=last), job(2, lastMetrics=counted)]
    assert [row(lines(jobs, None), at)["at"] for at in (1, 2)] == ["epoch 3/10", ""]
    assert row(lines(jobs, None, metric="acc"))["at"] == "batch 200"


def test_why_a_job_failed_or_waits_precedes_its_parameters() -> None:
    found = lines([job(state="ERROR", message="out of memory", arguments=["x"]),
                   job(2, state="PENDING_CRD_SCHEDULER", message="waiting for 2 CPU slots")], None)
    assert row(found)["note"] == "out of memory" and row(found, 2)["note"] == "waiting for 2 CPU slots"
    assert row(found, 2)["state"] == "PENDING"


def test_parameters_come_from_the_command_line_of_other_servers() -> None:
    found = lines([job(args="--exec-start PyTorch --model-main main.py -- --lr 0.1")], None)
    assert row(found)["note"] == "--lr 0.1"


def test_at_80_columns_the_name_keeps_16_and_every_id_is_whole() -> None:
    jobs = [job(number, appName=LONG, message=LONG, state="ERROR", lastMetrics=VALUES, **RAN) for number in (1, 12345)]
    found = lines(jobs, 80)
    assert max(map(len, found)) <= 80 and len(found) == 3
    assert [line.split()[0] for line in found[1:]] == ["local-1", "local-12345"]
    assert len(row(found)["name"]) >= 16 and row(found)["took"] == "8s" and row(found)["metric"].startswith("loss")
    wide = lines(jobs, 200)
    assert {"at", "note", "workers", "framework"} <= row(wide).keys(), "a wide terminal shows more columns"


TEXTS = st.text(max_size=60) | st.none() | st.integers() | st.lists(st.text(max_size=5), max_size=3)


@given(st.lists(st.dictionaries(
    st.sampled_from(["id", "appName", "state", "message", "arguments", "lastMetrics", "startTime", "numWorker"]), TEXTS,
), max_size=4), st.integers(80, 200))
def test_any_answer_makes_lines_without_control_characters(jobs: list[dict[str, Any]], width: int) -> None:
    jobs = [{**one, "id": f"local-{at}", "state": "RUNNING"} for at, one in enumerate(jobs)]
    found = lines(jobs, width)
    assert len(found) == len(jobs) + 1
    assert all(line.isprintable() for line in found if line.isascii()), found
    assert all(column_width(line) <= width for line in found), found
    for one in jobs:
        assert all("\n" not in line and "\x1b" not in line for line in page(one, None, [], width))


def test_a_page_has_the_facts_and_the_next_commands() -> None:
    found = page(job(state="FINISHED", lastMetrics=VALUES, arguments=["--epochs", "10"], hasResult=True, **RAN),
                 Files({"files": [{"path": "model/a.pt", "bytes": 2048}], "complete": True}), [], 80)
    text = "\n".join(found)
    assert found[0].split() == ["local-1", "SingleNodePytorchTrain", "FINISHED"]
    assert "1 file, 2.0K: model/a.pt" in text
    assert "8s" in text and "main.py --epochs 10" in text and "(step 230)" in text and "loss 0.0465" in text
    assert all(f"dlicmd {verb} local-1" in found[-1] for verb in ("result", "logs", "plot"))
    assert max(map(len, found)) <= 80


def test_the_steps_of_metrics_have_their_units() -> None:
    last = {"loss": {"value": 0.5, "step": 300, "stepUnit": "step"},
            "val_loss": {"value": 0.25, "step": 3, "stepUnit": "epoch"}}
    assert "loss 0.5 (step 300), val_loss 0.25 (epoch 3)" in "\n".join(page(job(lastMetrics=last), None, [], None))


def test_later_values_that_are_not_finite_are_counted() -> None:
    one = job(lastMetrics={"loss": {"value": 0.5, "step": 7, "left": 12}, "lr": {"value": 0.1, "step": 19}})
    assert "loss 0.5 (step 7, then 12 not finite), lr 0.1 (step 19)" in "\n".join(page(one, None, [], None))
    assert row(lines([one], None))["at"] == "step 7, then 12 not finite"


@pytest.mark.parametrize(("message", "told"), [
    ("ModuleNotFoundError: No module named 'sklearn.svm'", "dlicmd run --wait -- pip install scikit-learn"),
    ("ImportError: attempted relative import with no known parent package", "dlicmd run -- python -m pkg.main"),
    ("EOFError: EOF when reading a line", "dlicmd run main.py -- VALUE"),
    ("ValueError: environment variable RANK expected, but not set", "dlicmd run main.py --as ddp"),
    ("KeyError: 'RANK'", "dlicmd run main.py --as ddp"),
    ("KeyError: 'LOCAL_RANK'", "dlicmd run -- torchrun --standalone --nproc-per-node=2 main.py"),
    ("RuntimeError: [enforce fail at gloo/context.cc:23] rank < size. 2 vs 2", "dlicmd run main.py --as single"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", "dlicmd run main.py --data PATH"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'config.json'", "dlicmd search main.py --param"),
])
def test_a_common_error_of_a_program_leads_to_its_remedy(message: str, told: str) -> None:
    failed = job(state="ERROR", reason="PROGRAM_FAILED", message=message, workDir="/x/_submitted_code/pkg")
    for found in (page(failed, None, [], None), why_ended(failed, [])):
        assert told in found[-1] and "dlicmd logs local-1" in found[-1]
    assert told not in why_ended(failed | {"reason": "PENDING_TIMEOUT"}, [])[-1]


def test_a_module_of_the_user_is_not_to_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = job(state="ERROR", reason="PROGRAM_FAILED", message="ModuleNotFoundError: No module named 'network'")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "network.py").touch()
    monkeypatch.chdir(tmp_path)
    found = why_ended(failed, [])[-1]
    assert "model/network.py was not submitted" in found and "--model-dir" in found and "pip" not in found


def test_times_in_reasons_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    try:
        waits = job(state="PENDING_CRD_SCHEDULER", message="queued, not before 2026-11-24T00:32:03Z")
        assert "not before 2026-11-24 02:32:03 XYZ" in "\n".join(page(waits, None, [], None))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_path_that_is_too_long_for_a_line_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/" + "/".join(["folder"] * 12)
    assert any(path in line for line in page(job(workDir=path), None, [], 80))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert any(line.endswith(" ~/work") for line in page(job(workDir=str(folder)), None, [], 80))


def test_a_page_of_a_failed_job_has_the_reason_and_the_end_of_its_standard_error() -> None:
    failed = job(state="ERROR", message="exit code 3", reason="PROGRAM_FAILED", **RAN)
    for found in (page(failed, None, ["ValueError: bad"], None), why_ended(failed, ["ValueError: bad"])):
        text = "\n".join(found)
        assert "exit code 3" in text and "ValueError: bad" in text and "dlicmd logs local-1" in found[-1]


def test_a_running_job_says_where_it_is() -> None:
    found = why_running(job(slots=2, workers=2, step=40, steps=120, lastMetrics=VALUES, startTime=RAN["startTime"]))
    assert all(text in found[0] for text in ("RUNNING", "2 slots", "step 40/120", "loss 0.0465"))
    assert "follow local-1" in found[-1]


@pytest.mark.parametrize(("name", "chosen"), [
    ("running", {"RUNNING", "LAUNCHING", "RECOVERING"}), ("Pending", {"NEW", "SUBMITTED", "PENDING_JOB_SCHEDULER",
                                                                     "PENDING_CRD_SCHEDULER"}),
    ("PENDING_PJ", {"PENDING_CRD_SCHEDULER"}), ("finished, error", {"FINISHED", "ERROR"}), ("failed", {"ERROR"}),
])
def test_shown_states_are_states_to_select_by(name: str, chosen: set[str]) -> None:
    assert states.selected(name) == chosen


def test_every_state_is_selected_by_the_name_that_is_shown() -> None:
    for state in states.ACTIVE | states.TERMINAL:
        assert state in states.selected(states.plain(state).lower())


def test_an_unknown_state_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match="runing") as refused:
        states.selected("runing")
    assert all(name in str(refused.value) for name in states.NAMED)


NOW = time.mktime((2026, 11, 22, 20, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(("text", "before"), [("90s", 90), ("10m", 600), ("2h", 7200), ("3d", 259200), ("1w", 604800),
                                              ("19:30", 1800), ("9:00", 39600), ("2026-11-22", 72000),
                                              ("2026-11-22T19:00:00", 3600)])
def test_moments_are_read_as_users_type_them(text: str, before: int) -> None:
    assert moment(text, NOW) == NOW - before


@pytest.mark.parametrize("text", ["", "soon", "10", "10x", "25:00", "-1h", "2026-13-01"])
def test_other_moments_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="2h"):
        moment(text, NOW)
