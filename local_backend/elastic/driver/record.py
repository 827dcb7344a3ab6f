"""Files that a driver leaves for the driver that is started after its death: how far training was reported.

The newest snapshot gives the point from which training continues. These files tell what was logged already: the steps
of the present epoch with their results, and the completed boundaries. A driver logs first and writes afterwards. If it
is killed in between, the next driver logs this step or validation again, because a missing line cannot be noticed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from local_backend.elastic import RECORDS
from local_backend.elastic.driver import beginning
from local_backend.elastic.hub.events import BatchResult, Closed, Commit, Kept, Validated
from local_backend.elastic.hub.hub import Course
from local_backend.elastic.hub.watching import Totals, Values
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.position import EpochStage, Position
from local_backend.elastic.script import captured
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.artifacts import sync_folder, write_whole
from local_backend.elastic.state.resume import Start
from local_backend.elastic.state.snapshots import Snapshot, SnapshotFolder

STEPS = "steps.jsonl"
#: File with the values of each completed epoch.
EPOCHS = "epochs.jsonl"
#: Number of trainings of this process so far: a script may call train() several times.
_trainings = 0


@dataclass
class TrainingRecord:
    """The record of one training. Without a folder it writes nothing and has nothing to continue from."""

    course: Course
    folder: Path | None = None
    kept: Kept | None = None
    committed: int = 0
    epochs_done: int = 0
    #: Results of the committed steps of the present epoch.
    rows: list[tuple[BatchResult, ...]] = field(default_factory=list)
    #: Epoch → its values, as sent to the members.
    values: dict[int, Values] = field(default_factory=dict)
    #: Last epoch whose validation is logged, -1 for none.
    last_validated: int = -1
    #: Number of earlier trainings of the model with the seed of the script.
    count: int = 0
    #: States of the global generators at the start of datasets_function, from the first driver.
    generators: str = ""
    _file: IO[str] | None = None

    @classmethod
    def none(cls, course: Course, count: int = 0) -> TrainingRecord:
        """Return a record that keeps nothing."""
        return cls(course, count=count, generators=captured.generators())

    @classmethod
    def open(
        cls, course: Course, mode: str, job: TrainingJob, count: int = 0, *, whole: bool = False
    ) -> TrainingRecord:
        """Return the record of this process's next training, below CHECKPOINT_DIR, with the data of an earlier process.

        If the earlier process was in a training that this process does not repeat, the data is deleted with a warning.

        Args:
            count: number of earlier trainings of the model with the seed of the script.
            whole: training starts from the whole state of a checkpoint, so a warning is not necessary.
        """
        global _trainings
        given = os.environ.get("CHECKPOINT_DIR")
        if not given:
            return cls.none(course, count)
        root = Path(given) / RECORDS
        record = cls(course, count=count, generators=captured.generators())
        facts = {
            **_terms(course, mode, job), **beginning.facts_of(job), "count": count, "generators": record.generators,
            "versions": captured.versions(),
        }
        earlier = beginning.recorded(root, _trainings)
        known = beginning.find(earlier, _trainings + 1, facts)
        if known is None:
            for training in earlier:
                if not training.ended:
                    _drop(root / f"train-{training.number}", quiet=whole)
            _trainings = max([_trainings, *(training.number for training in earlier)]) + 1
        else:
            _trainings = known.number
        record.folder = root / f"train-{_trainings}"
        try:
            record._start(facts, None if known is None else known.facts)
        except OSError as error:
            print(f"WARNING: {record.folder} cannot be used ({error.strerror}); no snapshots are taken", flush=True)
            return cls.none(course, count)
        return record

    @staticmethod
    def left() -> bool:
        """Return whether a killed driver has left a record of the next training of this process, or of a later one."""
        given = os.environ.get("CHECKPOINT_DIR")
        return bool(given and beginning.recorded(Path(given) / RECORDS, _trainings))

    def begin(self, plan: StepPlan) -> None:
        """Count the epochs before the start as committed, when training begins or continues."""
        self.committed = max(self.committed, self.course.start * plan.steps_per_epoch)

    def go_on_from(self, start: Start) -> None:
        """Start from a checkpoint of an earlier training, unless this training has got further already."""
        snapshot = start.snapshot
        self.epochs_done = max(self.epochs_done, start.epochs)
        if snapshot is None:
            return
        self.generators = start.generators
        self.values = {**dict(enumerate(start.told)), **self.values}
        self.committed = max(self.committed, snapshot.position.steps)
        if self.kept is None:
            self.kept = Kept(0, snapshot.position, str(self._own(snapshot)))

    def _own(self, snapshot: Snapshot) -> Path:
        """Return the path of a copy of the snapshot in the folder, because training may replace the file. Return the
        path of the snapshot itself if there is no copy."""
        if self.folder is None:
            return snapshot.path
        own = SnapshotFolder(self.folder).path_of(snapshot.position)
        try:
            shutil.copyfile(snapshot.path, own)
        except OSError:
            return snapshot.path
        return own

    def commit(self, action: Commit, plan: StepPlan) -> None:
        """Write down that a step was reported."""
        if action.step == 0:
            before = action.epoch * plan.steps_per_epoch
            self._anew({"epoch": action.epoch, "committed": before, "validated": self.last_validated})
        self._write({"results": [[r.number, r.count, r.loss, r.correct, dict(r.metrics)] for r in action.results]})

    def validated(self, action: Validated) -> None:
        """Write down that a validation was reported."""
        self.last_validated = action.epoch
        self._write({"validated": action.epoch})

    def closed(self, action: Closed) -> None:
        """Write down the values of an epoch, for members that reach its end again under the next driver."""
        if self.folder is not None and self._file is not None and action.epoch not in self.values:
            with suppress(OSError), (self.folder / EPOCHS).open("a") as file:
                file.write(json.dumps({"epoch": action.epoch, "values": dict(action.values)}) + "\n")

    def prune(self, kept: Kept | None) -> None:
        """Remove snapshots that are no longer needed, now that training could continue from `kept`."""
        if self.folder is not None and kept is not None and kept.path:
            SnapshotFolder(self.folder).prune(kept.position)

    def sync(self) -> bool:
        """Bring the record to the disk. Return whether it is complete there, up to what was written down so far."""
        if self.folder is None or self._file is None:
            return False
        try:
            for path in (self.folder / STEPS, self.folder / EPOCHS):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(self.folder)
        except OSError:
            return False
        return True

    @property
    def totals(self) -> Totals:
        """Sums over the committed steps of the present epoch."""
        totals = Totals()
        for results in self.rows:
            totals = totals.add(results)
        return totals

    def end(self) -> None:
        """Write down that training has ended."""
        if self.folder is not None:
            with suppress(OSError):
                (self.folder / beginning.ENDED).touch()

    def _start(self, facts: dict[str, Any], known: dict[str, Any] | None) -> None:
        """Open the folder. `known`: the facts of an earlier process, if it was in this training. Raises OSError."""
        assert self.folder is not None
        if known is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700, parents=True)
            write_whole(self.folder / beginning.FACTS, lambda file: file.write(json.dumps(facts).encode()))
        else:
            # Keep the earlier seed and generator states, because they may come from the clock.
            self.course = replace(self.course, seed=known["seed"])
            self.count, self.generators = known["count"], known["generators"]
            if known["versions"] != facts["versions"]:
                print(f"WARNING: the training began with {known['versions']} and continues with {facts['versions']}; "
                      "the result may differ from a training with one version", flush=True)
            self._resume()
        self._file = (self.folder / STEPS).open("a")

    def _resume(self) -> None:
        """Read how far the earlier process got."""
        assert self.folder is not None
        try:
            for line in _lines(self.folder / STEPS):
                self._take(line)
        except (KeyError, TypeError, ValueError) as problem:
            print(f"WARNING: {self.folder / STEPS} is damaged ({problem!r}); training continues from before the damage",
                  flush=True)
        self.committed += len(self.rows)
        self.values = {
            line["epoch"]: line["values"] for line in _lines(self.folder / EPOCHS)
            if isinstance(line.get("epoch"), int) and isinstance(line.get("values"), dict)
        }
        # A snapshot ahead of the log is of no use: the results of the steps between are lost.
        folder, last = SnapshotFolder(self.folder), Position(self.committed, EpochStage.BEGUN)
        folder.drop_after(last)
        snapshot = folder.newest(last)
        if snapshot is not None:
            self.kept = Kept(0, snapshot.position, str(snapshot.path))

    def _take(self, line: dict[str, Any]) -> None:
        """Take a line of the record. Raises KeyError, TypeError or ValueError for a damaged line."""
        if "epoch" in line:
            self.epochs_done, self.committed = int(line["epoch"]), int(line["committed"])
            self.last_validated, self.rows = int(line["validated"]), []
        elif "results" in line:
            self.rows.append(tuple(map(_result, line["results"])))
        else:
            self.last_validated = int(line["validated"])

    def _anew(self, line: dict[str, Any]) -> None:
        """Begin a new file. The file of the epoch before stays until the first line of the new one is written."""
        if self.folder is None:
            return
        if self._file is not None:
            self._file.close()
        fresh = self.folder / f"{STEPS}.new"
        try:
            self._file = fresh.open("w")
            self._write(line)
            if self._file is not None:
                os.replace(fresh, self.folder / STEPS)
        except OSError:
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            try:
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
            except OSError:
                self._file = None  # the disk is full until the next epoch: a restart may log some steps again


def _terms(course: Course, mode: str, job: TrainingJob) -> dict[str, Any]:
    """Return the terms of a training. Snapshots of an earlier process belong to it only if the terms are equal."""
    parameters = [parameter for module in job.modules for parameter in module.parameters()]
    shapes = [[list(parameter.shape), str(parameter.dtype)] for parameter in parameters]
    kind = f"{type(job.optimizer).__module__}.{type(job.optimizer).__qualname__}"
    terms = asdict(course)
    del terms["workers"], terms["limits"]
    return {**terms, "mode": mode, "shapes": shapes, "optimizer": kind}


def _drop(folder: Path, quiet: bool) -> None:
    """Delete the record of a training that a killed driver left and this driver does not repeat."""
    shutil.rmtree(folder, ignore_errors=True)
    if quiet:
        return
    print(f"WARNING: the driver started again, and train() has other arguments, data or weights than the training in "
          f"{folder.name}. A script that loads a checkpoint of its own may cause this. The training starts from its "
          "beginning. Its result may differ from that of a job without interruption", flush=True)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the file up to the first one that is damaged. The last line may be incomplete."""
    try:
        text = path.read_bytes()
    except OSError:
        return
    for line in text.split(b"\n"):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
        yield found


def _result(row: object) -> BatchResult:
    """Return a result of the record. Raises TypeError for a damaged one."""
    match row:
        case [int(number), int(count), int() | float() as loss, int() | None as correct, dict(metrics)]:
            return BatchResult(number, count, loss, correct, metrics)
    raise TypeError(f"not a result: {str(row)[:100]}")
