"""Fetches remote data before an exec competes for slots: starts, watches, adopts and stops fetchers.

This is a part of the supervisor's turn and has no thread: the supervisor's loop watches its descriptors and timers.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from dlicmd.contract import data_sources, wire
from local_backend import interpreter
from local_backend.data import registry
from local_backend.data.errors import DataError
from local_backend.data.order import DELIVERED, FetchItem, FetchOrder, FetchOutcome, read_outcome, read_progress
from local_backend.files import remove_tree
from local_backend.runtime import environment, launcher_log, processes
from local_backend.runtime.launch import ProcessId
from local_backend.runtime.leftovers import Leftovers
from local_backend.runtime.loop import Backoff
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.records import Records
from local_backend.scheduler.model import Reason
from local_backend.settings import Settings
from local_backend.sources.volumes import cache_for
from local_backend.store.execs import ExecRow, is_exec_id
from local_backend.workload import DataSource, Workload

_log = logging.getLogger(__name__)
#: Maximum fetchers at the same time; each of them fetches in parallel.
_MOST = 4
#: Seconds that a stopped fetcher has to clean up before it is killed.
_GRACE = 5.0
#: Seconds before the next look at a fetcher that is just starting or just ending.
_AGAIN = 1.0
#: An exec fails after this many of its fetchers ended without an outcome.
_MOST_DEATHS = 3
#: Reason shown for a waiting exec until its fetcher reports progress.
WAITS = "fetching data"


class Connected(Protocol):
    """The connections that the data sources of execs use."""

    def of_sources(self, row: ExecRow) -> Mapping[int, Mapping[str, str]]:
        """Return the values of an exec's connections, secrets included: number of the source → values. Raises
        DataError."""

    def state(self, row: ExecRow) -> list[Any]:
        """Return a value that differs after one of the exec's connections was changed. Raises DataError when a
        connection was removed, or when this user may no longer use it."""


@dataclass
class _Fetch:
    """A running fetcher."""

    paths: ExecPaths
    process: ProcessId
    #: Descriptor that becomes readable when the fetcher ends.
    watch: int
    #: State of the connections when the fetcher started; None if unknown.
    basis: list[Any] | None
    #: The child process; None if an earlier server started the fetcher.
    child: subprocess.Popen[bytes] | None = None
    #: Set after a stop was sent: the moment (monotonic) at which the fetcher is killed.
    kill_at: float | None = None
    #: Whether its connections have changed: a new fetcher must then replace it.
    outdated: bool = False


class Fetching:
    """The execs that still wait for data. Only the supervisor's thread may call these methods, except `reason`."""

    def __init__(self, settings: Settings, records: Records, connected: Connected) -> None:
        self._settings, self._records, self._connected = settings, records, connected
        self._leftovers = Leftovers()
        self._running: dict[str, _Fetch] = {}
        #: Exec → whether all of its data is fetched; contains only execs with data to fetch.
        self._there: dict[str, bool] = {}
        self._nothing: set[str] = set()
        self._paths: dict[str, ExecPaths] = {}
        self._deaths: Counter[str] = Counter()
        #: Execs whose fetcher could not be started now.
        self._backoffs: defaultdict[str, Backoff] = defaultdict(Backoff)
        #: Exec → when its fetcher is tried again (monotonic).
        self._put_off: dict[str, float] = {}
        self._again_at: float | None = None
        self._swept = False
        self._cleaner = ThreadPoolExecutor(1, thread_name_prefix="data-cleaner")

    # --- state for the event loop

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when a fetcher ends."""
        return [fetch.watch for fetch in self._running.values()]

    @property
    def timers(self) -> list[float]:
        """Moments on the monotonic clock at which a turn is due."""
        kills = [fetch.kill_at for fetch in self._running.values() if fetch.kill_at is not None]
        return [*kills, *self._put_off.values(), *([self._again_at] if self._again_at is not None else [])]

    def reason(self, exec_id: str) -> Reason | None:
        """Return why an exec waits for its data; None if the data is complete. Call from any thread."""
        paths = self._paths.get(exec_id)
        if paths is None or self._there.get(exec_id, True):
            return None
        said = read_progress(paths.fetch_progress)
        sentence = launcher_log.one_line(said) if said else WAITS
        return Reason(wire.DATA, sentence, 0, starts="when all its data is fetched")

    # --- a turn

    def turn(self, rows: Iterable[ExecRow], paths_of: Callable[[ExecRow], ExecPaths]) -> None:
        """Register new execs, and clean up after execs that are over."""
        self._again_at = None
        now = time.monotonic()
        self._put_off = {exec_id: at for exec_id, at in self._put_off.items() if at > now}
        here: set[str] = set()
        leaving: set[str] = set()  # deleted execs, removed with all their files
        for row in rows:
            (leaving if row.terminal else here).add(row.id)
            if row.id not in self._nothing and row.id not in self._there and not row.terminal:
                if row.workload.data.fetched:
                    self._there[row.id], self._paths[row.id] = False, paths_of(row)
                else:
                    self._nothing.add(row.id)
        self._nothing &= here
        for gone in self._there.keys() - here:
            self._clean(gone, all_goes=gone in leaving)
        if not self._swept:
            self._swept = True
            self._sweep(here | leaving)

    def ready(self, row: ExecRow) -> bool:
        """Return whether an exec may compete for slots, because it waits for no data."""
        return self._there.get(row.id, True)

    def arrived(self, row: ExecRow) -> float | None:
        """Return when all data of an exec was fetched (epoch seconds). Return None for an exec that fetches no data,
        or whose data is incomplete."""
        paths = self._paths.get(row.id)
        if paths is None or not self._there[row.id]:
            return None
        try:
            return paths.fetch_outcome.stat().st_mtime
        except OSError:
            return None

    def attend(self, row: ExecRow) -> None:
        """Advance the fetch of a waiting exec: start its fetcher, or process the result of an ended one."""
        if self.ready(row):
            return
        paths, fetch = self._paths[row.id], self._running.get(row.id)
        if fetch is not None:
            self._compare(row, fetch)
            if processes.alive(fetch.process):
                if fetch.outdated:
                    self._call_off(fetch)
                return
            if fetch.outdated:
                self._forget_failure(paths)
            self._forget(row.id, fetch)
        outcome = read_outcome(paths.fetch_outcome)
        if outcome is not None and outcome.state == DELIVERED:
            self._there[row.id] = True
            total = sum(found.get("bytes", 0) for found in outcome.delivered.values())
            launcher_log.note(paths.launcher_log, "supervisor", f"all data is fetched: {total} bytes")
        elif outcome is not None and outcome.state:
            if outcome.trace:
                _log.error("%s: %s\n%s", row.id, outcome.message, outcome.trace)
            self._fail(paths, outcome.message)
        elif fetch is not None and not fetch.outdated and self._died(row.id):
            self._fail(paths, f"the data fetcher ended {_MOST_DEATHS} times without an error message: it was killed, "
                              "or the machine has too little memory")
        elif not self._adopt(paths):
            self._start(row, paths)

    def stop(self, row: ExecRow) -> bool:
        """Stop the fetcher of an exec. Return whether no fetcher of this exec runs any more."""
        paths = self._paths.get(row.id)
        if paths is None:
            return True
        fetch = self._running.get(row.id)
        if fetch is None:
            lives = self._adopt(paths)
            self._again_at = self._again_at or time.monotonic()
            return not lives
        if not processes.alive(fetch.process):
            self._forget(row.id, fetch)
            self._again_at = time.monotonic()  # the next turn sees that the exec is over, and cleans up
            return True
        self._call_off(fetch)
        return False

    def delivered(self, paths: ExecPaths) -> dict[int, dict[str, Any]]:
        """Return the facts about fetched data that the program gets: number of the source → values. Raises OSError."""
        outcome = read_outcome(paths.fetch_outcome)
        return {} if outcome is None else outcome.delivered

    def close(self) -> None:
        """Stop watching the fetchers; they keep running."""
        for exec_id, fetch in list(self._running.items()):
            self._forget(exec_id, fetch)
        self._cleaner.shutdown()

    # --- fetchers

    def _start(self, row: ExecRow, paths: ExecPaths) -> None:
        if row.id in self._put_off or len(self._running) >= _MOST:
            return  # a timer, or the end of a running fetcher, wakes the loop
        try:
            # Read the state before the values. If a connection changes in between, the state is outdated and a new
            # fetcher follows.
            basis = self._connected.state(row)
            values = self._connected.of_sources(row)
            paths.fetching.mkdir(mode=0o700, exist_ok=True)
            paths.data.mkdir(mode=0o700, exist_ok=True)
            self._order(row.workload, paths, basis).write(paths.fetch_order)
            child = self._launch(paths, values)
        except DataError as problem:
            self._fail(paths, str(problem))
            return
        except OSError as problem:
            backoff = self._backoffs[row.id]
            if backoff.failed(problem):
                _log.warning("%s: cannot fetch its data now, trying again: %s", row.id, problem)
            self._put_off[row.id] = time.monotonic() + backoff.pause
            return
        self._backoffs.pop(row.id, None)
        launcher_log.note(paths.launcher_log, "supervisor", f"{WAITS} in process {child.pid}")
        self._watch(paths, child.pid, basis, child)

    def _compare(self, row: ExecRow, fetch: _Fetch) -> None:
        """Mark a fetcher as outdated when the exec's connections have changed since it started."""
        if not fetch.outdated:
            try:
                fetch.outdated = self._connected.state(row) != fetch.basis
            except DataError:
                fetch.outdated = True
            if fetch.outdated:
                text = "a connection has changed; fetching data again"
                launcher_log.note(fetch.paths.launcher_log, "supervisor", text)

    def _call_off(self, fetch: _Fetch) -> None:
        """Send SIGTERM to a fetcher; kill it if it still runs after the grace period."""
        if fetch.kill_at is None:
            fetch.kill_at = time.monotonic() + _GRACE
            processes.send_signal(fetch.process, signal.SIGTERM)
        elif time.monotonic() >= fetch.kill_at:
            self._kill(fetch.paths)
            fetch.kill_at = time.monotonic() + _GRACE

    def _forget_failure(self, paths: ExecPaths) -> None:
        """Delete the failure and the progress of an outdated fetcher: they do not apply to the new connections. Keep
        the sources that it delivered."""
        outcome = read_outcome(paths.fetch_outcome)
        if outcome is not None and outcome.state != DELIVERED:
            FetchOutcome("", delivered=outcome.delivered).write(paths.fetch_outcome)
        paths.fetch_progress.unlink(missing_ok=True)

    def _order(self, spec: Workload, paths: ExecPaths, basis: list[Any]) -> FetchOrder:
        settings = self._settings
        return FetchOrder(
            tuple(self._item(number, source, paths)
                  for number, source in enumerate(spec.data.sources, 1) if source.fetched),
            str(paths.fetch_lock), str(paths.fetch_progress), str(paths.fetch_outcome),
            settings.data_patience, settings.cache_bytes, settings.embedded, settings.data_rows,
            settings.data_seconds, os.getpid() if settings.die_with_server else None, basis,
        )

    def _item(self, number: int, source: DataSource, paths: ExecPaths) -> FetchItem:
        target = source.target if registry.find(source.kind).cached(source.access) else data_sources.LOCAL
        cache = cache_for(self._settings, target)
        folder = paths.data_folder(number, source.name)
        return FetchItem(number, source.name, source.kind, source.access, source.location, str(folder), str(cache))

    def _launch(self, paths: ExecPaths, values: Mapping[int, Mapping[str, str]]) -> subprocess.Popen[bytes]:
        """Start a fetcher, and pass the secrets in a file that only this fetcher can read."""
        with _unseen() as given:
            given.write(json.dumps(values).encode())
            given.seek(0)
            env = environment.inherited(os.environ) | {processes.MARK: processes.mark_of(paths.state)}
            return subprocess.Popen(
                interpreter.command("local_backend.data.fetcher", str(paths.fetch_order)), env=env,
                cwd="/", stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _adopt(self, paths: ExecPaths) -> bool:
        """Watch a fetcher that an earlier server started. Return whether such a fetcher lives."""
        try:
            fd = os.open(paths.fetch_lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            written = os.read(fd, 20)
        finally:
            os.close(fd)
        self._again_at = time.monotonic() + _AGAIN  # the fetcher is just starting or just ending
        if written.isdigit():
            pid = int(written)
            launcher_log.note(paths.launcher_log, "supervisor", f"process {pid} is already fetching the data")
            self._watch(paths, pid, _basis(paths))
        return True

    def _watch(
        self, paths: ExecPaths, pid: int, basis: list[Any] | None, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        try:
            process = processes.identify(pid)
        except ProcessLookupError:
            process = ProcessId(pid, 0.0)
        fd = processes.watch(process)
        if fd is None:
            self._again_at = time.monotonic()  # the fetcher has already ended
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._running[paths.exec_id] = _Fetch(paths, process, fd, basis, child)

    def _kill(self, paths: ExecPaths) -> None:
        """Kill a fetcher. It holds no slots, so no exec waits for its end."""
        with suppress(TimeoutError):
            self._leftovers.kill(paths)

    def _forget(self, exec_id: str, fetch: _Fetch) -> None:
        os.close(fetch.watch)
        if fetch.child is not None:
            fetch.child.poll()
        del self._running[exec_id]

    def _fail(self, paths: ExecPaths, message: str) -> None:
        self._records.error(paths, wire.DATA, launcher_log.one_line(message))
        self._again_at = time.monotonic()  # the next turn sees that the exec is over, and cleans up

    def _died(self, exec_id: str) -> bool:
        """Count a death of the exec's fetcher. Return whether the limit is reached."""
        self._deaths[exec_id] += 1
        return self._deaths[exec_id] >= _MOST_DEATHS

    def _clean(self, exec_id: str, *, all_goes: bool) -> None:
        """Kill the fetcher of an exec that is over, and remove the fetched data. With `all_goes`, the remover deletes
        all files of the exec instead."""
        paths = self._paths.pop(exec_id)
        del self._there[exec_id]
        self._deaths.pop(exec_id, None)
        self._backoffs.pop(exec_id, None)
        self._put_off.pop(exec_id, None)
        fetch = self._running.get(exec_id)
        if fetch is not None:
            self._kill(paths)
            self._forget(exec_id, fetch)
        if not all_goes:
            self._cleaner.submit(_remove, paths)

    def _sweep(self, known: Set[str]) -> None:
        """Remove data that was fetched for execs that ended under an earlier server."""
        home = self._settings.paths
        names = os.listdir(home.jobs) if home.jobs.is_dir() else []
        for name in filter(is_exec_id, names):
            paths = home.job(name, "")
            if name not in known and paths.fetching.exists():
                self._cleaner.submit(_remove, paths)


def _unseen() -> IO[bytes]:
    """Return a file without a name, in memory if the system supports that."""
    return os.fdopen(os.memfd_create("values"), "r+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def _basis(paths: ExecPaths) -> list[Any] | None:
    """Return the state of the connections that an earlier server's fetcher was started with; None if unknown."""
    try:
        return FetchOrder.read(paths.fetch_order).basis
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(paths: ExecPaths) -> None:
    for folder in (paths.data, paths.fetching):
        try:
            remove_tree(folder)
        except OSError as problem:
            _log.warning("cannot remove the fetched data of %s: %s", paths.exec_id, problem)
