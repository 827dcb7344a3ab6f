"""A backend without its HTTP server, for tests of runtime and faults: in this process, or in a killable process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import commands
import forking
import psutil
from forking import MODULES, NURSERY, RUNNER, Forked
from sqlalchemy import Connection
from support import PATIENCE, eventually
from workloads import workload

from dlicmd.contract.states import RUNNING
from local_backend.runtime import tree, unix_socket
from local_backend.runtime.channel import Channel
from local_backend.runtime.environment import acts_at_start, inherited
from local_backend.runtime.launch import read_identity, server_proof
from local_backend.runtime.launcher import Held, Launcher
from local_backend.runtime.local_launcher import LocalLauncher
from local_backend.runtime.messages import FromRunner, Hello, from_runner, of_server
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.processes import PLACEHOLDERS, mark_of
from local_backend.runtime.supervisor import Supervisor
from local_backend.settings import Settings
from local_backend.store import events, execs
from local_backend.store.database import Database
from local_backend.store.events import Event
from local_backend.store.execs import ExecRow
from local_backend.vault import Vault

USER = "ada"
HOST = Path(__file__).parent / "runtime_host.py"
_AT_START = dict(os.environ)
#: Logs of backends in this process whose nurseries are forked.
_forking: set[str] = set()


def _forks(module: str, how: Mapping[str, Any]) -> bool:
    """Return whether a process of a backend in this process is forked. A test may have changed what acts at the start
    of a runner."""
    if module == NURSERY:
        return os.readlink(f"/proc/self/fd/{how['stdout']}") in _forking
    return not acts_at_start({name for name, _ in how["env"].items() ^ (inherited(_AT_START) | PLACEHOLDERS).items()})


forking.fork_modules({module: partial(commands.module_host, module) for module in MODULES}, _forks)


def settings_for(home: Path, **changes: Any) -> Settings:
    """Return settings of a small backend: 2 CPU slots, a short grace, no nursery (to start fast without torch)."""
    values: dict[str, Any] = {
        "home": home, "data_fs": home / "data", "result_fs": home / "results", "user": USER, "slots": 2,
        "stop_grace": 2.0, "nursery_idle": 0.0,
    }
    return Settings(**values | changes)


@dataclass
class Bench:
    """Submits execs as the API does, and reads their state."""

    settings: Settings
    database: Database
    wake: Callable[[], None] = lambda: None
    submitted: list[str] = field(default_factory=list)
    creators: dict[str, str] = field(default_factory=dict)

    def submit(
        self, files: Mapping[str, str] | str, main: str = "main.py", *, rest_after: int | None = None,
        wanted: int | None = None, **spec: Any,
    ) -> str:
        """Submit a folder (or the text of its main.py), and return the id of the exec."""
        number = self.database.write(execs.next_number)
        self.creators[execs.exec_id(number)] = spec.get("creator", USER)
        values: dict[str, Any] = {
            "id": execs.exec_id(number), "creator": USER, "model_dir": "model-dir",
            "main": None if "user_cmd" in spec else main,
            "data_dir": str(self.settings.data_fs),
        }
        vault = Vault(self.settings.paths.vault)
        sealed = {name: vault.seal_text(value) for name, value in spec.get("variables", {}).items()}
        job = workload(**values | spec | {"variables": sealed})
        paths = self.paths(job.id)
        for folder in (paths.state, paths.code(job), paths.logs, paths.model, paths.checkpoint):
            folder.mkdir(parents=True)
        for name, text in ({"main.py": files} if isinstance(files, str) else files).items():
            target = paths.code(job) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

        def create(connection: Connection) -> None:
            execs.create(connection, number, job, "", None, str(paths.code(job)))
            if rest_after is not None:
                execs.promote(connection, job.id, rest_after)
            if wanted is not None:
                execs.want(connection, job.id, wanted)

        self.database.write(create)
        self.submitted.append(job.id)
        self.wake()
        return job.id

    def promote(self, exec_id: str, rest_after: int | None = None) -> None:
        self.database.write(lambda c: execs.promote(c, exec_id, rest_after))
        self.wake()

    def wait_rested(self, exec_id: str, epochs: int) -> None:
        """Wait until an exec rests and holds no slots."""
        eventually(lambda: (row := self.row(exec_id)).rested == epochs and row.slots in (None, "[]"),
                   f"{exec_id} rests after epoch {epochs}")

    def paths(self, exec_id: str) -> ExecPaths:
        return self.settings.paths.job(exec_id, self.creators.get(exec_id, USER))

    def row(self, exec_id: str) -> ExecRow:
        row = self.database.read(lambda c: execs.get(c, exec_id))
        assert row is not None
        return row

    def history(self, exec_id: str) -> list[str]:
        return [event.data["state"] for event in self.stream(exec_id) if event.kind == events.STATE]

    def stream(self, exec_id: str) -> list[Event]:
        return self.database.read(lambda c: events.since(c, 0, exec_id))

    def wait(self, exec_id: str, patience: float = PATIENCE) -> ExecRow:
        """Wait until the exec has ended, and return its row."""
        return eventually(lambda: (row := self.row(exec_id)).terminal and row, f"{exec_id} ends", patience)

    def wait_running(self, exec_id: str) -> None:
        eventually(lambda: self.row(exec_id).state == RUNNING, f"{exec_id} runs")

    def waits_for(self, exec_id: str) -> str | None:
        """Return the sentence that says why an exec is pending, or None if it is not."""
        reason = self.supervisor.reason(exec_id)
        return None if reason is None else reason.sentence

    def wait_for_file(self, exec_id: str, name: str) -> str:
        """Wait for a file that the program writes (whole, in one write) in its code directory, and return its text."""
        path = self.paths(exec_id).code(self.row(exec_id).workload) / name
        return eventually(lambda: path.exists() and path.read_text(), f"{exec_id} writes {name}")

    def stop(self, exec_id: str) -> None:
        self.database.write(lambda c: execs.note(c, exec_id, stop_requested=True))
        self.wake()

    def end_all(self) -> None:
        """End the jobs that a failed test has left, which would hold the slots of later tests."""
        left = [row.id for row in self.database.read(execs.unfinished) if not row.terminal and not row.deleted]
        for exec_id in left:
            self.stop(exec_id)
        for exec_id in left:
            self.wait(exec_id)

    def delete(self, exec_id: str) -> None:
        self.database.write(lambda c: execs.note(c, exec_id, deleted=True))
        self.wake()

    def output(self, exec_id: str, stream: str = "stdout", task: str = "task12n-1") -> str:
        path = self.paths(exec_id).capture(task, stream, self.row(exec_id).elastic)
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def launcher_log(self, exec_id: str) -> str:
        return self.paths(exec_id).launcher_log.read_text(encoding="utf-8")

    def held(self, exec_id: str) -> Held | None:
        """The newest state that the runner has sent to the server in this process."""
        active = self.supervisor._control._active.get(exec_id)  # type: ignore[attr-defined]
        return None if active is None else active.run.held

    def told(self, exec_id: str, name: str) -> Any:
        """A value of the progress that the runner has sent to the server in this process."""
        live = self.supervisor.live(exec_id)  # type: ignore[attr-defined]
        return None if live is None else live.progress.get(name)

    def ask(self, exec_id: str) -> list[FromRunner]:
        """The state of a runner, asked as a server that starts does; it takes the place of any other server."""
        fd, _ = unix_socket.connect(self.paths(exec_id).socket)
        channel, found = Channel(fd), list[FromRunner]()
        attempt = self.row(exec_id).attempt
        channel.send(of_server(Hello(server_proof(self.paths(exec_id)))))

        def complete() -> bool:
            messages = (from_runner(value, attempt) for value in channel.receive())
            found.extend(message for message in messages if message is not None)
            return any(isinstance(message, Held) for message in found)

        eventually(complete, f"the runner of {exec_id} answers")
        channel.close()
        return found

    def leftovers(self, exec_id: str) -> list[psutil.Process]:
        """Return the processes of an exec that still exist."""
        paths = self.paths(exec_id)
        return tree.leftovers(mark_of(paths.state), read_identity(paths))

    def sweep(self) -> None:
        """Kill all processes that a failed test has left."""
        for exec_id in self.submitted:
            paths = self.paths(exec_id)
            tree.sweep(mark_of(paths.state), read_identity(paths), set())


@contextmanager
def bench(
    home: Path, launcher: Callable[[Settings], Launcher] = LocalLauncher, *, forked: bool = True, **changes: Any
) -> Iterator[Bench]:
    """Run a backend in this process. With `forked`, a process that has imported PyTorch forks its nursery."""
    settings = settings_for(home, **changes)
    if forked:
        _forking.add(os.path.realpath(settings.paths.log))
    settings.paths.jobs.mkdir(parents=True, exist_ok=True)
    database = Database(settings.paths.database)
    database.open()
    supervisor = Supervisor(settings, database, launcher(settings))
    supervisor.start()
    one = Bench(settings, database, supervisor.wake)
    one.supervisor = supervisor  # type: ignore[attr-defined]
    try:
        yield one
    finally:
        supervisor.close()
        one.sweep()
        database.close()


@cache
def _backends() -> forking.Host:
    """Start the process from which backends are forked; it ends when this process ends."""
    return forking.Host(HOST)


class Host:
    """A backend in its own process, which a test can kill and start again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.process: Forked | subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the backend, and wait until it is ready."""
        one = self.settings
        flags = [str(one.home), str(one.slots), str(one.stop_grace), str(one.nursery_idle), str(one.die_with_server),
                 str(one.embedded), str(one.rested_kept)]
        given, to_backend = os.pipe()
        from_backend, said = os.pipe()
        self._to, self._from = os.fdopen(to_backend, "w"), os.fdopen(from_backend)
        if environment:  # for the interpreter: it cannot be forked
            self.process = subprocess.Popen([sys.executable, str(HOST), *flags], stdin=given, stdout=said,
                                            env={**os.environ, **environment})
        else:
            request = {"environment": dict(os.environ), "flags": flags}
            links = [commands.module_host(module).fileno() for module in (MODULES if one.nursery_idle else [RUNNER])]
            self.process = _backends().start(request, [given, said, *links])
        os.close(given)
        os.close(said)
        assert self._from.readline() == "ready\n"

    def wake(self) -> None:
        """Make the backend read the database; does nothing while it is down."""
        self._tell("wake")

    def resize(self, exec_id: str, count: int) -> None:
        """Change the number of slots of a running job."""
        self._tell(f"resize {exec_id} {count}")

    def waits_for(self, exec_id: str) -> str:
        """Return the sentence that says why an exec is pending, or "" if it is not."""
        self._tell(f"why {exec_id}")
        return self._from.readline().removesuffix("\n")

    def _tell(self, line: str) -> None:
        if self.process is not None:
            with suppress(BrokenPipeError):
                self._to.write(line + "\n")
                self._to.flush()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None
            with suppress(BrokenPipeError):  # what it has not read
                self._to.close()
            self._from.close()

    def restart(self) -> None:
        self.kill()
        self.start()


@contextmanager
def host_bench(home: Path, **changes: Any) -> Iterator[tuple[Host, Bench]]:
    """Run a host, and a bench in this process that shares its database file."""
    settings = settings_for(home, **changes)
    settings.paths.jobs.mkdir(parents=True, exist_ok=True)
    database = Database(settings.paths.database)
    database.open()
    host = Host(settings)
    one = Bench(settings, database, host.wake)
    host.start()
    try:
        yield host, one
    finally:
        if host.process is not None:
            host.signal(signal.SIGCONT)
        host.kill()
        one.sweep()
        database.close()


def runner_of(one: Bench, exec_id: str) -> int:
    """Return the pid of the runner of an exec."""
    identity = eventually(lambda: read_identity(one.paths(exec_id)), f"{exec_id} has a runner")
    return identity.pid


def gone(pid: int) -> bool:
    """Return whether the process has ended; a zombie has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
