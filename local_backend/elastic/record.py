"""What a driver leaves behind for the one that is started after its death: how far training was reported.

The newest snapshot says from where training goes on; this says what was logged already, so that nothing is logged
twice: the steps of the present epoch with their results, and the boundaries that are done.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from local_backend.elastic import captured
from local_backend.elastic.artifacts import write_whole
from local_backend.elastic.events import BatchResult, Closed, Commit, Kept, Validated
from local_backend.elastic.hub import Course
from local_backend.elastic.job import Job
from local_backend.elastic.plan import Plan
from local_backend.elastic.resume import Start
from local_backend.elastic.snapshots import Snapshot, SnapshotFolder
from local_backend.elastic.watching import Totals, Values

STEPS = "steps.jsonl"
#: The values of each epoch that is over.
EPOCHS = "epochs.jsonl"
#: Trainings of this process so far: a script may call train() several times.
_trainings = 0


@dataclass
class Record:
    """One training. Without a folder nothing is written, and there is nothing to go on from."""

    course: Course
    folder: Path | None = None
    kept: Kept | None = None
    committed: int = 0
    epochs_done: int = 0
    #: Results of the steps of the present epoch that are committed.
    rows: list[tuple[BatchResult, ...]] = field(default_factory=list)
    #: Epoch → its values, which the members were told.
    values: dict[int, Values] = field(default_factory=dict)
    #: Epochs whose validation is logged.
    last_validated: int = -1
    #: States of the global generators that datasets_function finds: those of the first driver.
    generators: str = ""
    _file: IO[str] | None = None

    @classmethod
    def none(cls, course: Course) -> Record:
        """Nothing is kept."""
        return cls(course, generators=captured.generators(course.seed))

    @classmethod
    def open(cls, course: Course, mode: str, job: Job) -> Record:
        """The record of this process' next training, below CHECKPOINT_DIR; with what an earlier process left there.

        What belongs to another training (the script has changed) is thrown away.
        """
        global _trainings
        root = os.environ.get("CHECKPOINT_DIR")
        if not root:
            return cls.none(course)
        _trainings += 1
        folder = Path(root) / "elastic" / f"train-{_trainings}"
        record = cls(course, folder, generators=captured.generators(course.seed))
        terms = {**_terms(course, mode, job), "generators": record.generators}
        try:
            record._start(terms)
        except OSError as error:
            print(f"WARNING: {folder} cannot be used ({error.strerror}); no snapshots are taken", flush=True)
            return cls.none(course)
        atexit.register(_remove, folder)
        return record

    def begin(self, plan: Plan) -> None:
        """Training begins, or goes on."""
        self._plan = plan
        self.committed = max(self.committed, self.course.start * plan.steps_per_epoch)

    def go_on_from(self, start: Start) -> None:
        """Begin where a checkpoint of an earlier training ends, unless this training has got further already."""
        snapshot = start.snapshot
        self.epochs_done = max(self.epochs_done, start.epochs)
        if snapshot is None:
            return
        self.generators = start.generators
        self.values = {**dict(enumerate(start.told)), **self.values}
        self.committed = max(self.committed, snapshot.version // 4)
        if self.kept is None:
            self.kept = Kept(0, snapshot.version, str(self._own(snapshot)))

    def _own(self, snapshot: Snapshot) -> Path:
        """The path of the snapshot, or of a copy in the folder: training may replace the file."""
        if self.folder is None:
            return snapshot.path
        own = SnapshotFolder(self.folder).path_of(snapshot.version)
        try:
            shutil.copyfile(snapshot.path, own)
        except OSError:
            return snapshot.path
        return own

    def commit(self, action: Commit) -> None:
        """A step was reported."""
        if action.step == 0:
            before = action.epoch * self._plan.steps_per_epoch
            self._anew({"epoch": action.epoch, "committed": before, "validated": self.last_validated})
        self._write({"results": [[r.number, r.count, r.loss, r.correct, dict(r.metrics)] for r in action.results]})

    def validated(self, action: Validated) -> bool:
        """A validation is to be reported; False when it was already."""
        if action.epoch <= self.last_validated:
            return False
        self.last_validated = action.epoch
        self._write({"validated": action.epoch})
        return True

    def closed(self, action: Closed) -> None:
        """Write down the values of an epoch: they are told again to members that come to its end again."""
        if self.folder is not None and self._file is not None and action.epoch not in self.values:
            with suppress(OSError), (self.folder / EPOCHS).open("a") as file:
                file.write(json.dumps({"epoch": action.epoch, "values": dict(action.values)}) + "\n")

    @property
    def totals(self) -> Totals:
        """Sums over the steps of the present epoch that are committed."""
        totals = Totals()
        for results in self.rows:
            totals = totals.add(results)
        return totals

    def _start(self, terms: dict[str, Any]) -> None:
        """Raises OSError."""
        assert self.folder is not None
        path = self.folder / "training.json"
        known = _read(path)
        drawn = {"seed": 0, "generators": ""}
        if known is not None and {**known, **drawn} == {**terms, **drawn} and known.keys() == terms.keys():
            # Random numbers that come from the clock must stay what they were.
            self.course = replace(self.course, seed=known["seed"])
            self.generators = known["generators"]
            self._resume()
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700, parents=True)
            write_whole(path, lambda file: file.write(json.dumps(terms).encode()))
        self._file = (self.folder / STEPS).open("a")

    def _resume(self) -> None:
        """Find out how far it got."""
        assert self.folder is not None
        for line in _lines(self.folder / STEPS):
            if "epoch" in line:
                self.epochs_done, self.committed = line["epoch"], line["committed"]
                self.last_validated, self.rows = line["validated"], []
            elif "results" in line:
                self.rows.append(tuple(BatchResult(*row) for row in line["results"]))
            else:
                self.last_validated = line["validated"]
        self.committed += len(self.rows)
        self.values = {line["epoch"]: line["values"] for line in _lines(self.folder / EPOCHS)}
        # One that is ahead of what was logged is of no use: the results of the steps between are lost.
        snapshot = SnapshotFolder(self.folder).newest(4 * self.committed + 3)
        if snapshot is not None:
            self.kept = Kept(0, snapshot.version, str(snapshot.path))

    def _anew(self, line: dict[str, Any]) -> None:
        """Begin a new file; the one of the epoch before stays until its first line is written."""
        if self._file is None or self.folder is None:
            return
        self._file.close()
        fresh = self.folder / f"{STEPS}.new"
        try:
            self._file = fresh.open("w")
            self._write(line)
            os.replace(fresh, self.folder / STEPS)
        except OSError:
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            try:
                self._file.write(json.dumps(line) + "\n")
                self._file.flush()
            except OSError:
                self._file = None  # the disk is full: a restart would log some steps again


def _terms(course: Course, mode: str, job: Job) -> dict[str, Any]:
    """What must be the same for an earlier process' snapshots to be of this training."""
    parameters = [parameter for module in job.modules for parameter in module.parameters()]
    shapes = [[list(parameter.shape), str(parameter.dtype)] for parameter in parameters]
    kind = f"{type(job.optimizer).__module__}.{type(job.optimizer).__qualname__}"
    terms = asdict(course)
    del terms["workers"], terms["limits"]
    return {**terms, "mode": mode, "shapes": shapes, "optimizer": kind}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the file; the last one may be torn."""
    try:
        text = path.read_text()
    except OSError:
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _remove(folder: Path) -> None:
    """The process ends by itself: no other one will go on from here."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # of several trainings, the last one to go succeeds
        folder.parent.rmdir()
