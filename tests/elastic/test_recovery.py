"""Training continues with the same result after all workers die, after the driver dies, and without slots."""

import json
import os
from pathlib import Path

import pytest
from churn import Training
from support import eventually

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Digest and log of the same training on one worker."""
    training = Training(tmp_path_factory.mktemp("undisturbed"), 1)
    training.begin()
    assert training.finish().returncode == 0
    return training.digest, training.rows


@pytest.fixture
def training(tmp_path, request):
    """A training on two workers with frequent snapshots; the parameter is their interval in seconds."""
    training = Training(tmp_path, 2)
    training.attributes = {**Training.attributes, "snapshot_seconds": getattr(request, "param", "0.05")}
    training.begin()
    yield training
    training.abort()


def snapshots(training: Training) -> list[Path]:
    return list((training.tmp / "result" / "checkpoint").rglob("*.snapshot"))


def steps_of(snapshot: Path) -> int:
    return int(snapshot.stem) // 4


def as_undisturbed(training: Training, undisturbed) -> bool:
    assert training.rows == undisturbed[1]
    return training.digest == undisturbed[0]


def test_a_job_without_slots_is_parked_and_continues_with_new_slots(training, undisturbed):
    training.wait_for_step(7)
    training.resize(0)
    assert "parked at step" in training.status["message"]
    training.wait(lambda: not training.alive(), "all workers end")
    training.resize(3)
    assert training.status["message"] is None
    training.wait_for_step(training.status["step"] + 3)
    assert training.finish().returncode == 0
    assert as_undisturbed(training, undisturbed)


def test_training_continues_from_the_newest_snapshot_after_all_workers_die(training, undisturbed):
    training.wait(lambda: snapshots(training), "a snapshot")
    training.wait_for_step(training.status.get("step", 0) + 2)
    for worker in training.alive():
        training.kill(worker)
    training.wait(lambda: training.status.get("recovering"), "recovering")
    training.wait(lambda: not training.status.get("recovering"), "recovered")
    assert training.finish().returncode == 0
    assert as_undisturbed(training, undisturbed)
    assert any("from the snapshot" in line or "with the kept state" in line for line in training.history())


@pytest.mark.parametrize("training", ["1"], indirect=True)
def test_a_new_driver_continues_the_training_of_a_killed_driver(training, undisturbed):
    # A snapshot that is not newer than the driver's log; the next one is written a second later.
    training.wait(lambda: any(steps_of(path) <= training.status.get("step", -1) for path in snapshots(training)), "one")
    assert training.kill_driver().returncode == -9
    logged = len(training.rows)
    training.begin()
    outcome = training.finish()
    assert outcome.returncode == 0, outcome.stderr
    assert logged > 0
    assert as_undisturbed(training, undisturbed)
    assert any("from the snapshot" in line or "with the kept state" in line for line in training.history())


def test_a_driver_killed_in_its_logger_loses_no_validation(tmp_path, undisturbed):
    training = Training(tmp_path, 2, killed_while_logging=5)
    training.attributes = {**Training.attributes, "snapshot_seconds": "0.05"}
    try:
        training.begin()
        assert training.finish().returncode == -9
        training.begin()
        outcome = training.finish()
    finally:
        training.abort()
    assert outcome.returncode == 0, outcome.stderr
    assert as_undisturbed(training, undisturbed)


#: The points at which all workers stop before the driver is killed, and the committed steps. An epoch has 5 steps.
MOMENTS = [
    ("before-reduce:17", 16), ("callbacks:14", 14), ("boundary:14", 14), ("validating:14", 15),
    ("checkpoint-rename:24", 25), ("finishing:59", 60),
]


@pytest.mark.parametrize(
    ("moment", "done"),
    [pytest.param(*m, marks=[] if m[0].startswith("validating") else pytest.mark.slow) for m in MOMENTS],
)
def test_a_driver_killed_at_any_point_is_replaced(tmp_path, undisturbed, moment, done):
    training = Training(tmp_path, 2)
    training.attributes = {**Training.attributes, "snapshot_seconds": "0.05"}
    point, step = moment.split(":")
    (tmp_path / "result" / "hurry").touch()
    training.begin(ELASTIC_FAULT=f"{point}:1:{step}:stop,{point}:2:{step}:stop")
    try:
        training.wait_for_workers(2)
        eventually(lambda: "T" in states(training), "a worker stops")
        eventually(lambda: recorded(training) >= done, "the records contain all steps so far")
        assert training.kill_driver().returncode == -9
        training.begin()
        outcome = training.finish()
    finally:
        training.abort()
    assert outcome.returncode == 0, outcome.stderr
    assert as_undisturbed(training, undisturbed)


HARM = {
    "deleted": None, "empty": b"", "binary": os.urandom(500), "another type": b"[1]\n7\n", "no keys": b"{}\n",
    "no results": b'{"epoch": 1, "committed": 5, "validated": 0}\n{"results": [["x"]]}\n',
}


@pytest.mark.parametrize("harm", [
    name if name == "binary" else pytest.param(name, marks=pytest.mark.slow) for name in HARM
])
def test_a_damaged_record_of_steps_costs_time_but_no_training(tmp_path, undisturbed, harm):
    training = Training(tmp_path, 2)
    training.attributes = {"hang_seconds": "120", "snapshot_seconds": "0.05"}
    training.begin()
    try:
        training.wait_for_step(12)
        assert training.kill_driver().returncode == -9
        (path,) = (training.tmp / "result" / "checkpoint").rglob("steps.jsonl")
        path.unlink() if HARM[harm] is None else path.write_bytes(HARM[harm])
        training.begin()
        outcome = training.finish()
    finally:
        training.abort()
    assert outcome.returncode == 0, outcome.stderr
    assert training.digest == undisturbed[0]


def test_snapshots_ahead_of_the_record_displace_no_later_ones(tmp_path, undisturbed):
    training = Training(tmp_path, 2)
    training.attributes = {**Training.attributes, "snapshot_seconds": "0.05"}
    training.begin()
    try:
        training.wait(lambda: sum(steps_of(path) >= 12 for path in snapshots(training)) >= 2, "snapshots")
        assert training.kill_driver().returncode == -9
        (path,) = (training.tmp / "result" / "checkpoint").rglob("steps.jsonl")
        path.unlink()
        training.begin()
        training.wait(lambda: path.exists() and recorded(training) >= 6, "steps of the new driver")
        for worker in training.alive():
            training.kill(worker)
        outcome = training.finish()
    finally:
        training.abort()
    assert outcome.returncode == 0, outcome.stderr
    assert training.digest == undisturbed[0]


def states(training: Training) -> set[str]:
    """Return the states of the workers' processes, as in /proc."""
    stats = [Path(f"/proc/{training.workers[worker].pid}/stat") for worker in training.alive()]
    return {path.read_text().rpartition(")")[2].split()[0] for path in stats}


def recorded(training: Training) -> int:
    """Return the number of recorded steps."""
    (path,) = (training.tmp / "result" / "checkpoint").rglob("steps.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    begun = [line["committed"] for line in lines if "committed" in line]
    return sum(begun[-1:]) + sum("results" in line for line in lines)
