"""The collector of a runner: finds the metrics that a program writes, and keeps its curves.

It reads in short turns between the other work of the runner, as the user of the job. Its share of the time is bounded,
and so is what it keeps. If it fails, the job has no further curves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlicmd import program_log
from dlicmd.contract import wire
from dlicmd.contract.sizes import show_size
from local_backend.curves.binary import EventsReader, WandbReader
from local_backend.curves.book import Book, KeptCurve
from local_backend.curves.file import CurveFile, began, load
from local_backend.curves.layout import BEGIN
from local_backend.curves.model import FABRIC, STEP, MakeReader, MetricValue, Reader
from local_backend.curves.points import Key, PointWriter
from local_backend.curves.printed import PrintedReader
from local_backend.curves.records import (
    LONGEST,
    EMetricsReader,
    LogReader,
    MetricsCsvReader,
    MLflowReader,
    TrainerStateReader,
)
from local_backend.runtime import launcher_log
from local_backend.runtime.paths import ExecPaths

#: Seconds between two turns, and between two searches for files. After a turn, the collector pauses at least _REST
#: times the CPU time of the turn.
_EVERY, _SEARCH_EVERY, _REST = 1.0, 3.0, 20
#: Seconds of one turn, of a turn after the end of the program, and of `settle`.
_TURN, _LAST_TURN, _SETTLING = 0.05, 0.5, 2.0
#: Bytes of one read, of a file that is read as a whole, and of printed output that may wait to be read.
_CHUNK, _WHOLE, _BEHIND = LONGEST + (1 << 16), 8 << 20, 16 << 20
#: Maximum number of files, of entries of one search, and depth of folders.
_MOST_FILES, _MOST_ENTRIES, _DEPTH = 1000, 20_000, 8
_SKIPPED = frozenset({".git", "__pycache__", "node_modules", "site-packages", ".venv"})
#: Seconds by which the clock of file systems may be late.
_LATE = 0.02
#: Folders of TensorBoard whose names are parts of the names of metrics.
_PARTS = frozenset({"train", "training", "validation", "val", "valid", "test", "eval"})


@dataclass
class _File:
    """A file that is read as it grows, or again as a `whole` when it has changed."""

    path: Path
    reader: Reader
    whole: bool = False
    offset: int = 0
    seen: tuple[int, int] = (0, 0)


class Collector:
    """Collects the curves of one attempt. No method raises."""

    def __init__(self, paths: ExecPaths, streams: Sequence[Path], tell: Callable[[Mapping[str, Any]], None]) -> None:
        """`streams` has the captured output of the program. `tell` receives the last values as progress values."""
        #: When the next turn is due (monotonic).
        self.due: float | None = time.monotonic() + _EVERY
        self._paths, self._tell = paths, tell
        self._book = Book()
        self._file: CurveFile | None = None
        #: Keeps all points of a long training; None before BEGIN points, and after a failure. The points so far.
        self._points: PointWriter | None = None
        self._seen = 0
        self._files = {path: _File(path, PrintedReader()) for path in streams}
        self._search_at = 0.0
        #: Whether a file has more to read, after a turn at the end.
        self._has_rest = False
        #: Folder of the first run, for libraries that keep several runs.
        self._first: dict[str, Path] = {}
        self._began = time.time() - _LATE
        self._told: Mapping[str, Any] = {}
        #: Whether a failure to write has been logged.
        self._failed = False

    def turn(self) -> None:
        """Read new output and files for a short time."""
        now = time.monotonic()
        if self.due is None or now < self.due:
            return
        before = time.process_time()
        self._guarded(lambda: self._work(now + _TURN, final=False))
        if self.due is not None:
            self.due = time.monotonic() + max(_EVERY, _REST * (time.process_time() - before))

    def settle(self) -> None:
        """Read everything that was written so far, and bring the curves to the disk."""
        if self.due is not None:
            self._guarded(self._work_and_sync)

    def _work_and_sync(self) -> None:
        self._search_at = 0.0
        self._work(time.monotonic() + _SETTLING, final=False)
        if self._file is not None:
            self._file.sync()

    def finish(self, patience: float, goes_on: Callable[[], bool]) -> None:
        """Read the rest after the program has ended: in turns, for at most `patience` seconds, and only while `goes_on`
        returns true between two turns."""
        end = time.monotonic() + patience
        self._has_rest = self.due is not None
        self._search_at = 0.0
        while self._has_rest:
            self._has_rest = False
            self._guarded(lambda: self._work(min(end, time.monotonic() + _LAST_TURN), final=True))
            if self._has_rest and not (time.monotonic() < end and goes_on()):
                self._guarded(self._note_rest)
                break
        self.due = None

    def _note_rest(self) -> None:
        """Log that the last values are missing."""
        rest = sum(max(0, file.path.stat().st_size - file.offset) for file in self._files.values()
                   if not file.whole and file.path.exists())
        launcher_log.note(self._paths.launcher_log, "runner", "the curves lack their last values: "
                          f"{show_size(rest)} of metrics were not read in time", "WARNING")

    def engine(self, step: float, values: Mapping[str, Any]) -> None:
        """Take values that the elastic engine reports about committed steps."""
        if self.due is not None:
            self._guarded(lambda: self._take_engine(step, values))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as problem:  # the disk is full, or the program replaced the file: try again
            if not self._failed:
                launcher_log.note(self._paths.launcher_log, "runner", f"cannot keep the curves: {problem}", "WARNING")
            self._failed = True
        except Exception as problem:
            self.due = None
            launcher_log.note(self._paths.launcher_log, "runner", f"no further curves: {problem!r}", "WARNING")

    def _take_engine(self, step: float, values: Mapping[str, Any]) -> None:
        self._open()
        now = round(time.time(), 3)
        # The driver repeats values after a restart: a point that is kept keeps its time.
        self._take(FABRIC, [MetricValue(name, value, step, STEP, now) for name, value in values.items()
                            if isinstance(value, int | float) and not isinstance(value, bool)
                            and not self._book.has(FABRIC, name, step, value)])

    def _work(self, deadline: float, final: bool) -> None:
        file = self._open()
        if time.monotonic() >= self._search_at:
            before = time.process_time()
            self._search()
            self._search_at = time.monotonic() + max(_SEARCH_EVERY, 2 * _REST * (time.process_time() - before))
        for one in list(self._files.values()):
            while (has_rest := self._read(one, final)) and time.monotonic() < deadline:
                pass
            self._has_rest = self._has_rest or has_rest
        # The file comes first: a client that gets a value can read the curve with it.
        file.flush()
        self._flush_points()
        last = self._book.last()
        if last and last != self._told:
            self._told = last
            self._tell({wire.LAST_METRICS: last})

    def _open(self) -> CurveFile:
        """Return the file with the curves, which continues those of an earlier attempt."""
        if self._file is None:
            found = self._paths.opened(self._paths.curves)
            if found is not None:
                with found:
                    self._began = began(found) or self._began
                    load(found, self._book)
            self._file = CurveFile(self._paths.curves, self._book, self._began)
            self._seen = sum(map(len, self._book.curves))
            if self._seen >= BEGIN or self._paths.points.exists():
                self._begin_points()
        return self._file

    # --- files

    def _search(self) -> None:
        """Find new files that libraries write."""
        for path, _ in sorted(self._walk(), key=_order):
            if path not in self._files and len(self._files) < _MOST_FILES:
                found = self._reader(path)
                if found is not None:
                    self._files[path] = found

    def _walk(self) -> Iterator[tuple[Path, float]]:
        """Yield the files in RESULT_DIR, which contains the working directory and LOG_DIR, with the times of their last
        changes. Follows no link, and leaves out files that were submitted and not changed since."""
        count, folders = 0, [(str(self._paths.root), 0)]
        while folders:
            folder, depth = folders.pop()
            try:
                with os.scandir(folder) as found:
                    for entry in found:
                        count += 1
                        if count > _MOST_ENTRIES:
                            return
                        if entry.is_dir(follow_symlinks=False):
                            if depth < _DEPTH and entry.name not in _SKIPPED:
                                folders.append((entry.path, depth + 1))
                        elif _may_hold(entry.name, folder):
                            status = entry.stat(follow_symlinks=False)
                            # A copy may keep the older st_mtime of its original. A program cannot choose st_ctime.
                            if status.st_ctime >= self._began:
                                yield Path(entry.path), status.st_mtime
            except OSError:
                continue

    def _reader(self, path: Path) -> _File | None:
        """Return the file with its reader; None if it holds no metrics."""
        name = path.name
        if name in _NAMES:
            make, whole = _NAMES[name]
            return _File(path, make(), whole)
        if name.endswith(_WANDB):
            return _File(path, WandbReader())
        if _EVENTS in name:
            run = path.parent
            part = f"{run.name}/" if run.name.lower() in _PARTS else ""
            return _File(path, EventsReader(self._prefix(_EVENTS, run.parent if part else run) + part))
        return self._mlflow(path)

    def _mlflow(self, path: Path) -> _File | None:
        """Return the file of a metric RUN/metrics/NAME, None for another file. A NAME may contain slashes."""
        *folders, name = path.relative_to(self._paths.root).parts
        if _METRICS not in folders:
            return None
        place = folders.index(_METRICS)
        run = self._paths.root.joinpath(*folders[:place])
        if not (run / "meta.yaml").is_file():
            return None
        return _File(path, MLflowReader(self._prefix(_METRICS, run) + "/".join([*folders[place + 1 :], name])))

    def _prefix(self, kind: str, run: Path) -> str:
        """Return the prefix of the names of a run: none for the first one."""
        return "" if self._first.setdefault(kind, run) == run else f"{run.name}/"

    def _read(self, file: _File, final: bool) -> bool:
        """Read a piece of a file. Return whether there is more to read now."""
        try:
            status = file.path.lstat()
        except OSError:
            return False
        mark = (status.st_mtime_ns, status.st_size)
        if mark == file.seen and not (final and file.offset < status.st_size and not file.whole):
            return False
        if file.whole:
            file.seen = mark
            if status.st_size <= _WHOLE:
                self._feed(file, _WHOLE, final=True)
            return False
        if status.st_size < file.offset:
            file.offset = 0  # written anew
        behind = status.st_size - file.offset
        if behind > _BEHIND and isinstance(file.reader, PrintedReader):
            file.offset = status.st_size - _BEHIND // 2
        done = self._feed(file, _CHUNK, final and behind <= _CHUNK)
        if not done or file.offset >= status.st_size:
            file.seen = mark
            return False
        return True

    def _feed(self, file: _File, most: int, final: bool) -> bool:
        """Pass a piece of a file to its reader. Return whether the reader has made progress."""
        opened = self._paths.opened(file.path)
        if opened is None:
            return False
        with opened:
            opened.seek(0 if file.whole else file.offset)
            data = opened.read(most)
        try:
            done, values = file.reader.feed(data, final)
        except ValueError:
            self._files[file.path] = _File(file.path, _Unreadable(file.reader.source))
            return False
        if not file.whole:
            file.offset += done
            now = round(time.time(), 3)
            values = [one if one.time is not None else one._replace(time=now) for one in values]
        self._take(file.reader.source, values)
        return done > 0

    def _take(self, source: str, values: Sequence[MetricValue]) -> None:
        for value in values:
            found = self._book.add(source, value)
            if found is not None and self._file is not None:
                self._file.note(*found, value.value, value.time)
                self._note_point(*found, value.value, value.time)

    # --- all points

    def _note_point(self, index: int, step: float, value: float, at: float | None) -> None:
        """Keep a point in full. The first BEGIN points follow when there are so many."""
        self._seen += 1
        if self._points is not None:
            self._add_points([(_key(self._book.curves[index]), step, value, at)])
        elif self._seen == BEGIN:
            self._begin_points()

    def _begin_points(self) -> None:
        """Begin to keep all points, with those of the book, or continue the files of an earlier attempt."""
        is_new = not self._paths.points.exists()
        try:
            self._points = PointWriter(self._paths.points)
        except OSError as problem:
            self._fail_points(problem)
        self._seen = max(self._seen, BEGIN)
        if is_new:
            self._add_points((_key(curve), *point) for curve in self._book.curves for point in curve.points())

    def _add_points(self, points: Iterable[tuple[Key, float, float, float | None]]) -> None:
        """Keep points. A failure does no harm to the thinned curves."""
        if self._points is None:
            return
        try:
            for point in points:
                self._points.add(*point)
        except OSError as problem:
            self._fail_points(problem)

    def _flush_points(self) -> None:
        if self._points is None:
            return
        try:
            self._points.flush()
        except OSError as problem:
            self._fail_points(problem)

    def _fail_points(self, problem: OSError) -> None:
        self._points = None
        launcher_log.note(self._paths.launcher_log, "runner", f"cannot keep all points of the curves: {problem}",
                          "WARNING")


def _key(curve: KeptCurve) -> Key:
    return curve.source, curve.name, curve.unit


class _Unreadable:
    """Ignores the rest of a damaged file."""

    def __init__(self, source: str) -> None:
        self.source = source

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        return len(data), []


#: Names of files: their readers, and whether the file is read again as a whole. Parts of other names.
_NAMES: Mapping[str, tuple[MakeReader, bool]] = {
    program_log.FILE: (LogReader, False), "evaluation-metrics.txt": (EMetricsReader, False),
    "trainer_state.json": (TrainerStateReader, True), "metrics.csv": (MetricsCsvReader, True),
}
_EVENTS, _WANDB, _METRICS = ".tfevents.", ".wandb", "metrics"


def _order(found: tuple[Path, float]) -> tuple[tuple[str, ...], float, Path]:
    """Return the key that puts the first of several runs first: event files of a folder before those of the folders in
    it, other files in the order of their last changes."""
    path, changed = found
    return path.parent.parts if _EVENTS in path.name else (), changed, path


def _may_hold(name: str, folder: str) -> bool:
    """Return whether a file may hold metrics, judged by its name and its folder."""
    return name in _NAMES or _EVENTS in name or name.endswith(_WANDB) or f"/{_METRICS}" in folder
