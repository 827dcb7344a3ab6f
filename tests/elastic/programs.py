"""The programs of tests/programs, and the ways to run each: alone, on workers, with a resize, with a killed worker.

A program is one file as a user writes it, or `train.py` in a folder with its modules. Its first lines declare the
expected result: `# family:`, `# about:`, `# expect: same` or `# expect: refused ErrorType "part of the message"`, and
`# alone: works` if the engine refuses only a training on several workers.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from fake_runner import FakeRunner, Outcome
from hashing import hash_of
from scripts import alone, plain
from support import PATIENCE, eventually

FOLDER = Path(__file__).parent.parent / "programs"
#: Lines that the engine itself prints.
_ENGINE = re.compile(
    r"<> |Using |Timestamp|batches :|Iteration |-{5,}|start message server|resume from |validation_|test_|WARNING"
)
#: Files that the engine keeps beside the weights. They depend on the workers, or their effects are compared.
_NOT_COMPARED = "_training_state.pth"


@dataclass(frozen=True)
class Program:
    """One program of the corpus and the declarations in its first lines."""

    path: Path
    family: str
    about: str
    #: The type of the expected error and a part of its message; empty if the program trains.
    error: str
    sentence: str
    #: The program trains alone, although the engine refuses it on workers.
    works_alone: bool

    @property
    def name(self) -> str:
        """The name of the file, or of the folder for `train.py`."""
        return self.path.parent.name if self.path.name == "train.py" else self.path.stem

    @property
    def refused(self) -> bool:
        """Whether the engine is expected to refuse the program."""
        return bool(self.error)


def read(path: Path) -> Program:
    """Read the declarations in the first lines of a program. Raises ValueError if they are incomplete."""
    head: dict[str, str] = {}
    for line in path.read_text().splitlines():
        found = re.fullmatch(r"# (\w+): (.+)", line)
        if not found:
            break
        head[found[1]] = found[2]
    expected = re.fullmatch(r'same|refused (\w+) "(.+)"', head.get("expect", ""))
    if expected is None or set(head) - {"alone"} != {"family", "about", "expect"}:
        raise ValueError(f"{path}: the first lines must be # family:, # about: and # expect:, not {head}")
    error, sentence = expected[1] or "", expected[2] or ""
    return Program(path, head["family"], head["about"], error, sentence, head.get("alone") == "works")


def corpus() -> list[Program]:
    """Return all programs, by family and name."""
    files = [*FOLDER.glob("*.py"), *FOLDER.glob("*/train.py")]
    return sorted(map(read, files), key=lambda program: (program.family, program.name))


# --- results of a program


@dataclass(frozen=True)
class Left:
    """The results of a program: hashes of the tensors in its checkpoints, by file, and its printed lines."""

    checkpoints: dict[str, str]
    printed: tuple[str, ...]


def left(folder: Path, stdout: str) -> Left:
    """Return the results of a program below `folder`/result."""
    train = folder / "result" / "model" / "train"
    files = [path for path in sorted(train.glob("*.pth")) if not path.name.endswith(_NOT_COMPARED)]
    hashes = {path.name: hash_of(torch.load(path, weights_only=False)) for path in files}
    printed = [line for line in stdout.splitlines() if line.strip() and not _ENGINE.match(line)]
    return Left(hashes, tuple(printed))


# --- ways to run a program


def lay_out(folder: Path, program: Program) -> Path:
    """Copy a program, as a submission does, make its folders, and return the path of its main file."""
    code = folder / "code"
    if program.path.name == "train.py":
        shutil.copytree(program.path.parent, code, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        code.mkdir(parents=True)
        shutil.copy(program.path, code)
    (folder / "result").mkdir()
    (folder / "log").mkdir()
    return code / program.path.name


def run_alone(folder: Path, program: Program) -> Outcome:
    """Run a program in one process without a backend."""
    return alone(folder, lay_out(folder, program))


def run_plain(folder: Path, program: Program) -> Outcome:
    """Run a program as `python train.py` in a fresh interpreter."""
    ended = plain(folder, lay_out(folder, program))
    return Outcome(ended.returncode, ended.stdout, ended.stderr)


def run_on(workers: int) -> Callable[[Path, Program], Outcome]:
    """Return a function that runs a program on `workers` workers without disturbances."""
    return lambda folder, program: FakeRunner(folder, workers).run(lay_out(folder, program))


@dataclass(frozen=True)
class Hold:
    """A worker waits at a fault point while the job gets `slots` slots.

    The worker continues after as many new workers have entered as this event and the earlier events name. After a
    death, hold a survivor two steps later: at the next step the survivors must enter a new generation.
    """

    point: str
    worker: int
    step: int
    slots: int = 0
    newcomer: int = 0


@dataclass(frozen=True)
class Kill:
    """SIGKILL kills a worker at a fault point."""

    point: str
    worker: int
    step: int


#: 1 worker, then 3, then 2. The two new workers may become ready together or one after the other.
RESIZE = (
    1,
    (
        Hold("before-reduce", 1, 1, slots=3, newcomer=2),
        Hold("before-reduce", 1, 4, newcomer=3),
        Hold("before-reduce", 2, 7, slots=2),
    ),
)
#: One of 3 workers dies after it has sent its gradients, and a new worker replaces it.
KILL = (3, (Kill("mid-apply", 2, 2), Hold("before-reduce", 1, 4, newcomer=4)))
#: All disturbances in one run: 2 workers, 3 workers, the first dies, a new worker copies from a new worker, 1 worker.
DISTURBED = (
    2,
    (
        Hold("before-reduce", 1, 1, slots=3, newcomer=3),
        Kill("mid-apply", 1, 4),
        Hold("before-reduce", 2, 6, newcomer=4),
        Hold("before-reduce", 3, 9, slots=1),
    ),
)
Scenario = tuple[int, Sequence[Hold | Kill]]


class Disturbed(FakeRunner):
    """Runs an unchanged program while workers join, leave and die at defined steps."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        slots, self.events = scenario
        super().__init__(folder, slots, 4)
        self.holds = folder / "holds"
        self.holds.mkdir()
        self.ended = threading.Event()
        #: New workers that have entered, and the number that must have entered.
        self.entered: set[str] = set()
        self.expected = 0
        #: Events that took place.
        self.done: list[Hold | Kill] = []

    def run(self, script: Path, *arguments: str, **extra: str) -> Outcome:
        """Run the script to its end."""
        faults = [f"{e.point}:{e.worker}:{e.step}:{'hold' if isinstance(e, Hold) else 'kill'}" for e in self.events]
        entering = [f"entering:{e.newcomer}:*:hold" for e in self.events if isinstance(e, Hold) and e.newcomer]
        acting = threading.Thread(target=self._act)
        acting.start()
        try:
            faulty = {"ELASTIC_FAULT": ",".join([*faults, *entering]), "ELASTIC_HOLD": str(self.holds)}
            return super().run(script, *arguments, **faulty, **extra)
        finally:
            self.ended.set()
            acting.join()

    def _act(self) -> None:
        """Carry out the events in order, then release all holds."""
        for event in self.events:
            if isinstance(event, Hold) and not self._act_on(event):
                break
            self.done.append(event)
        (self.holds / "over").touch()

    def _act_on(self, event: Hold) -> bool:
        """Resize while a worker waits. Return False if the program ended before.

        A new worker may reach a boundary before the held worker reaches its fault point. The order of two new workers
        is open, and one enters a second time if the other becomes ready meanwhile.
        """
        held, asked = self.holds / f"{event.point}-{event.worker}", False
        self.expected += bool(event.newcomer)
        deadline = time.monotonic() + PATIENCE
        while not self.ended.wait(0.01) and time.monotonic() < deadline:
            for waiting in self.holds.glob("entering-*"):
                waiting.unlink()
                self.entered.add(waiting.name)
            if held.exists() and event.slots and not asked:
                asked = True
                self.allocate(event.slots)
            if held.exists() and len(self.entered) >= self.expected:
                held.unlink()
                return True
        return False


def run_disturbed(scenario: Scenario) -> Callable[[Path, Program], Outcome]:
    """Return a function that runs a program through a scenario.

    It fails if the program ends before the first events.
    """

    def run(folder: Path, program: Program) -> Outcome:
        script = lay_out(folder, program)
        runner = Disturbed(folder, scenario)
        outcome = runner.run(script)
        holds = [event for event in scenario[1] if isinstance(event, Hold)]
        came = [event for event in runner.done if isinstance(event, Hold)]
        if outcome.returncode == 0 and len(came) < min(2, len(holds)):
            raise AssertionError(f"{program.name} ended before {holds[len(came)]}: it has too few steps")
        return outcome

    return run


class Snapshotting(FakeRunner):
    """Takes a snapshot whenever it can."""

    attributes: ClassVar[dict[str, str]] = {**FakeRunner.attributes, "snapshot_seconds": "0.02"}


def run_with_killed_driver(point: str, worker: int, step: str) -> Callable[[Path, Program], Outcome]:
    """Return a function that runs a program, kills the driver while a worker waits at a fault point, and runs the
    program again from the top, as the backend does."""

    def run(folder: Path, program: Program) -> Outcome:
        script, holds = lay_out(folder, program), folder / "holds"
        holds.mkdir()
        checkpoints = {"CHECKPOINT_DIR": str(folder / "checkpoints")}
        faults = {"ELASTIC_FAULT": f"{point}:{worker}:{step}:hold", "ELASTIC_HOLD": str(holds)}
        first = Snapshotting(folder, 2, 4)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(first.run, script, **faults, **checkpoints)
            eventually(lambda: running.done() or (holds / f"{point}-{worker}").exists(), "the worker waits")
            if not running.done():
                first.driver.kill()
            assert running.result().returncode == -9, running.result().stderr
        return Snapshotting(folder, 3, 4).run(script, **checkpoints)

    return run


#: All ways to run a program, by the title of the column.
WAYS: dict[str, Callable[[Path, Program], Outcome]] = {
    "alone": run_plain,
    "1 worker": run_on(1),
    "2 workers": run_on(2),
    "3 workers": run_on(3),
    "resize": run_disturbed(RESIZE),
    "kill": run_disturbed(KILL),
}


# --- verdicts


def verdict(program: Program, way: str, folder: Path, outcome: Outcome, reference: Left | None) -> str:
    """Describe the first unexpected fact of one run; return an empty text if there is none.

    Args:
        reference: the results of the program alone, or None if they are unknown.
    """
    log = outcome.stderr
    if program.refused and not (program.works_alone and way == "alone"):
        if outcome.returncode == 0:
            return f"{way}: ended FINISHED, expected {program.error} with {program.sentence!r}"
        last = [line for line in log.splitlines() if re.match(r"[\w.]+(Error|Exception)?: ", line)]
        fits = [line for line in last if program.error in line.partition(":")[0] and program.sentence in line]
        return "" if fits else f"{way}: expected {program.error} with {program.sentence!r}, got {log[-1500:]}"
    if outcome.returncode != 0:
        return f"{way}: ended with {outcome.returncode}: {log[-1500:]}"
    found = left(folder, outcome.stdout)
    if "model_epoch_final.pth" not in found.checkpoints:
        return f"{way}: left no weights"
    if reference is None or found == reference:
        return ""
    names = found.checkpoints.keys() | reference.checkpoints.keys()
    files = sorted(name for name in names if found.checkpoints.get(name) != reference.checkpoints.get(name))
    lines = [pair for pair in zip(reference.printed, found.printed, strict=False) if pair[0] != pair[1]]
    return f"{way}: differs from alone in {files or 'no file'}; printed {lines or (reference.printed, found.printed)}"


def matrix(program: Program, folder: Path) -> list[str]:
    """Run a program in all ways and return the unexpected facts."""
    problems, reference = [], None
    for way, run in WAYS.items():
        if program.refused and way not in ("alone", "1 worker", "2 workers"):
            continue
        if program.works_alone and way == "1 worker":
            continue
        here = folder / way.replace(" ", "-")
        outcome = run(here, program)
        problem = verdict(program, way, here, outcome, reference)
        if problem:
            problems.append(problem)
        elif reference is None and outcome.returncode == 0:
            reference = left(here, outcome.stdout)
    return problems


# --- the page

PAGE = FOLDER.parent.parent / "docs" / "compatibility.md"
_INTRODUCTION = """\
# Compatibility

This page lists programs that train with the same result on any number of workers, and programs that are refused. Each
is a file in `tests/programs/`, written as a user writes it. `python tests/elastic/programs.py` runs every program in
all ways, and writes this page; `pytest -m slow tests/elastic/test_programs.py` also runs them.

- **same bits**: all checkpoints (weights, optimizer, moving average, best) and all printed lines are equal for
  `python train.py`, 1, 2 and 3 workers, 1 → 3 → 2 workers while it trains, and 3 workers of which one is killed.
- **refused**: the job ends ERROR, and the sentence contains the words shown. *On workers*: `python train.py`
  trains the program, because nothing can differ there.

{same} programs train, {refused} are refused.
"""


def page(programs: Sequence[Program], problems: dict[str, list[str]]) -> str:
    """Return the text of docs/compatibility.md, with the problems of programs that have unexpected results."""
    refused = sum(program.refused for program in programs)
    lines = [_INTRODUCTION.format(same=len(programs) - refused, refused=refused)]
    lines += ["| family | program | shows | result |", "|---|---|---|---|"]
    for program in programs:
        where = program.path.relative_to(FOLDER.parent.parent)
        wrong = "; ".join(problems.get(program.name, [])).replace("\n", " ").replace("|", "\\|")
        result = f"**NOT AS EXPECTED**: {wrong}" if wrong else _result(program)
        lines.append(f"| {program.family} | [{program.name}](../{where}) | {program.about} | {result} |")
    return "\n".join(lines) + "\n"


def _result(program: Program) -> str:
    if not program.refused:
        return "same bits"
    where = " on workers" if program.works_alone else ""
    return f"refused{where}: `{program.sentence}`"


def main() -> int:
    """Run all programs in all ways and write the page. Return 1 if a result is unexpected."""
    problems: dict[str, list[str]] = {}
    programs = corpus()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda program: matrix(program, Path(folder) / program.name), programs)
        for program, wrong in zip(programs, found, strict=True):
            print(program.name, "; ".join(wrong) or "as expected", flush=True)
            problems[program.name] = wrong
    PAGE.write_text(page(programs, problems))
    return int(any(problems.values()))


if __name__ == "__main__":
    raise SystemExit(main())
