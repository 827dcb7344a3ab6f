"""The CPU cores and the memory that the processes of a job use, over time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from runtime_support import Bench, bench
from support import eventually

from dlicmd.contract.states import FINISHED
from local_backend.curves.file import read
from local_backend.runtime import gpu_reports, metering
from local_backend.runtime.environment import TaskId
from local_backend.runtime.gpu_reports import GpuReports
from local_backend.runtime.launcher import Held
from local_backend.runtime.local_run import LocalRun
from local_backend.runtime.messages import GpusMeasured, from_server, of_server
from local_backend.runtime.metering import ProcessUse, ResourceMeter, uses
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.tasks import TaskPlan
from local_backend.runtime.utilisation import Use, Utilisation
from local_backend.scheduler.model import Slot

GIB = 1 << 30
#: Uses a second of CPU time, and tells so; then ends when its input ends.
BUSY = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\nsys.stdin.read()"
#: Starts BUSY, and has its memory in a process below.
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"


@pytest.fixture
def paths(tmp_path: Path) -> ExecPaths:
    """The files of an exec."""
    found = ExecPaths(tmp_path / "jobs" / "local-1", tmp_path / "results" / "local-1", "local-1")
    for folder in (found.state, found.root, found.launcher_log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    return found


def curves(paths: ExecPaths) -> dict[str, list[list[float]]]:
    """Return the curves in the file: name → [seconds, value] of each point."""
    with paths.resources.open("rb") as file:
        return {one["name"]: [point[:2] for point in one["points"]] for one in read(file, "", ()).curves}


def test_the_use_of_a_process_contains_that_of_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdin is not None and task.stdout is not None
        task.stdout.readline()
        before, each = uses(os.getpid(), [task.pid])
        other, others = uses(os.getpid(), [])
        task.stdin.close()
        assert task.wait() == 0
    assert each[task.pid].seconds >= 0.4 and before.seconds >= each[task.pid].seconds
    assert before.memory >= each[task.pid].memory > 5 << 20
    assert others[0].seconds >= 0.4 and other.memory == sum(one.memory for one in others.values())
    after, _ = uses(os.getpid(), [])
    assert after.seconds >= before.seconds, "the time of ended processes counts"
    assert after.memory < before.memory


def test_the_time_of_ended_children_counts_for_their_task() -> None:
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}], input=b'', stdout=-3)\n" + (
        "print(flush=True)\nsys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdin is not None and task.stdout is not None
        task.stdout.readline()
        whole, each = uses(os.getpid(), [task.pid])
        task.stdin.close()
    assert each[task.pid].seconds >= 0.4 and whole.seconds >= 0.4


class Clock:
    """A clock that tests set, and the processes that they let run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cost = 100.0, 0.0
        self.seconds, self.memory = dict[int, float](), dict[int, int]()
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: 1.7e9 + self.now, process_time=self._spent)
        monkeypatch.setattr(metering, "time", clock)
        monkeypatch.setattr(metering, "uses", self._uses)

    def _spent(self) -> float:
        self.cost *= -1
        return self.cost / 2

    def _uses(self, root: int, tasks: Collection[int]) -> tuple[ProcessUse, dict[int, ProcessUse]]:
        assert root == os.getpid()
        each = {pid: ProcessUse(self.seconds[pid], self.memory[pid]) for pid in tasks}
        return ProcessUse(sum(self.seconds.values()), sum(self.memory.values())), each


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def tasks(*numbers: int) -> dict[int, TaskPlan]:
    """Return a driver (0) and workers, with pids from 10 on."""
    named = {number: TaskId(f"task12n-{number}" if number else "task0", number) for number in numbers}
    return {10 + number: cast(TaskPlan, SimpleNamespace(task=task)) for number, task in named.items()}


def test_cores_are_the_cpu_time_between_two_readings(paths: ExecPaths, clock: Clock) -> None:
    meter = ResourceMeter(paths)
    clock.seconds, clock.memory = {11: 6.0}, {11: GIB}
    meter.turn(tasks(1))
    assert not paths.resources.exists(), "the first reading is not due"
    for passed, used in ((3, 6.0), (10, 21.0), (9, 99.0), (1, 21.0)):
        clock.now, clock.seconds[11] = clock.now + passed, used
        meter.turn(tasks(1))
    assert curves(paths) == {"cpu": [[3, 2.0], [13, 1.5], [23, 0.0]], "memory": [[3, GIB], [13, GIB], [23, GIB]]}


def test_several_processes_have_curves_of_their_own(paths: ExecPaths, clock: Clock) -> None:
    meter = ResourceMeter(paths)
    clock.seconds, clock.memory = {10: 3.0, 11: 6.0, 12: 9.0}, {10: 1, 11: 2, 12: 4}
    clock.now += 3
    meter.turn(tasks(0, 1, 2))
    assert curves(paths) == {
        "cpu": [[3, 6.0]], "cpu driver": [[3, 1.0]], "cpu worker 1": [[3, 2.0]], "cpu worker 2": [[3, 3.0]],
        "memory": [[3, 7]], "memory driver": [[3, 1]], "memory worker 1": [[3, 2]], "memory worker 2": [[3, 4]]}


def test_gpus_have_curves_once_the_server_reports_them(paths: ExecPaths, clock: Clock) -> None:
    meter = ResourceMeter(paths)
    clock.seconds, clock.memory = {11: 3.0}, {11: 8}
    for gpus in ({"gpu-0": (0.5, GIB)}, {"gpu-0": (0.25, GIB), "gpu-1": (1.0, 2 * GIB)}):
        meter.take_gpus(GpusMeasured(gpus))
        clock.now += 10
        meter.turn(tasks(1))
    clock.now += 10
    meter.turn(tasks(1))
    found = {name: points for name, points in curves(paths).items() if name.startswith("gpu")}
    assert found == {
        "gpu": [[10, 0.5], [20, 1.25]], "gpu-memory": [[10, GIB], [20, 3 * GIB]],
        "gpu gpu-0": [[20, 0.25]], "gpu gpu-1": [[20, 1.0]],
        "gpu-memory gpu-0": [[20, GIB]], "gpu-memory gpu-1": [[20, 2 * GIB]]}


class Reported:
    """A run that notes what is reported to it."""

    def __init__(self, *slots: str) -> None:
        self.ended, self.held, self.reports = False, Held(0, slots, slots), list[Mapping[str, Use]]()

    def report(self, uses: Mapping[str, Use]) -> None:
        self.reports.append(uses)


def test_each_run_hears_about_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(gpu_reports, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asked: list[set[str]] = []
    use = {"GPU-a": Use(0.5, GIB), "GPU-b": Use(1.0, 2)}
    reader = cast(Utilisation, SimpleNamespace(begin=asked.append, latest=use))
    slots = [Slot("gpu-0", "gpu", "GPU-a"), Slot("gpu-1", "gpu", "GPU-b"), Slot("gpu-2", "gpu", "GPU-c"),
             Slot("cpu-0", "cpu")]
    reports = GpuReports(slots, reader)
    assert reports.due is None
    first, second, other = Reported("gpu-0", "gpu-2"), Reported("gpu-1"), Reported("cpu-0")
    for run in (first, second, other):
        reports.follow(cast(LocalRun, run))
    reports.tick()
    assert not asked, "not due"
    now[0] += 10
    reports.tick()
    assert asked == [{"GPU-a", "GPU-b", "GPU-c"}] and not first.reports
    now[0] += 1
    reports.tick()
    assert (first.reports, second.reports, other.reports) == ([{"gpu-0": use["GPU-a"]}], [{"gpu-1": use["GPU-b"]}], [])
    first.ended = second.ended = other.ended = True
    now[0] += 20
    reports.tick()
    assert reports.due is None and len(asked) == 1
    assert GpuReports([Slot("cpu-0", "cpu")], reader).follow(cast(LocalRun, other)) and reports.due is None


@pytest.mark.parametrize("uses", [{"gpu-0": [2.0, 5]}, {"gpu-0": [0.5]}, {"gpu-0": ["x", 5]}, {"gpu-0": [0.5, -1]},
                                  {"gpu-0": [float("nan"), 5]}, {"gpu-0": None}])
def test_reports_that_are_not_valid_are_left_out(uses: dict[str, Any]) -> None:
    assert from_server({"op": "gpus", "uses": uses | {"gpu-1": [1, 7]}}) == GpusMeasured({"gpu-1": (1.0, 7)})
    assert from_server({"op": "gpus", "uses": [1]}) is None
    sent = GpusMeasured({"gpu-0": (0.5, 5)})
    assert from_server(json.loads(json.dumps(of_server(sent)))) == sent


def test_a_job_on_a_gpu_has_its_use(
    there: Callable[[list[dict[str, Any]]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there([{"uuid": "GPU-a", "used": 0.25}])
    monkeypatch.setattr(gpu_reports, "_EVERY", 1.0)
    monkeypatch.setattr(gpu_reports, "_READING", 0.5)
    with bench(tmp_path / "home", slots=None) as one:
        job = one.submit("import os, time\nwhile not os.path.exists('enough'): time.sleep(0.02)")
        found: dict[str, Any] = {}

        def is_measured() -> bool:
            found.update(curves(one.paths(job)) if one.paths(job).resources.exists() else {})
            return "gpu-memory" in found

        eventually(is_measured, "a reading of the GPU")
        (one.paths(job).code(one.row(job).workload) / "enough").touch()
        assert one.wait(job).state == FINISHED
    assert {"cpu", "memory", "gpu"} <= found.keys() and 0 <= found["gpu"][0][1] <= 1


def test_another_attempt_continues_the_curves(paths: ExecPaths, clock: Clock) -> None:
    clock.seconds, clock.memory = {11: 3.0}, {11: 8}
    for _ in range(2):
        meter = ResourceMeter(paths)
        clock.now += 3
        meter.turn(tasks(1))
        clock.now += 57
    assert curves(paths)["cpu"] == [[3, 1.0], [63, 1.0]]


def test_costly_readings_are_rare(paths: ExecPaths, clock: Clock) -> None:
    meter = ResourceMeter(paths)
    clock.seconds, clock.memory, clock.cost = {11: 3.0}, {11: 8}, 0.05
    clock.now += 3
    meter.turn(tasks(1))
    assert meter.due == clock.now + 100


def test_a_failure_ends_the_curves_alone(paths: ExecPaths, clock: Clock) -> None:
    meter = ResourceMeter(paths)
    paths.resources.mkdir()
    clock.seconds, clock.memory = {11: 3.0}, {11: 8}
    clock.now += 3
    meter.turn(tasks(1))
    assert meter.due is None and "no longer recorded" in paths.launcher_log.read_text()
    meter.turn(tasks(1))


def test_a_job_has_its_use_while_it_runs(cold: Bench) -> None:
    one = cold.submit("import sys, time\nfrom pathlib import Path\nblock = b'1' * (64 << 20)\n"
                      "while not Path('enough').exists(): pass")
    found: dict[str, Any] = {}

    def is_measured() -> bool:
        found.update(curves(cold.paths(one)) if cold.paths(one).resources.exists() else {})
        return "memory" in found

    eventually(is_measured, "a reading")
    (cold.paths(one).code(cold.row(one).workload) / "enough").touch()
    assert cold.wait(one).state == FINISHED
    [_, cores], [_, memory] = found["cpu"][0], found["memory"][0]
    assert cores > 0 and memory > 64 << 20
