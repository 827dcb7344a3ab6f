"""Files that supervisor and runner exchange: job.json, attempt, runner.json, restarts.json, exit.json.

Each file has one writer at a time, and is replaced as a whole.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dlicmd.contract.states import PENDING, TERMINAL
from local_backend.files import read_json, write_atomic, write_json
from local_backend.runtime.launcher import Outcome
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.runtime.progress import valid
from local_backend.runtime.restarts import Restarts
from local_backend.runtime.view import Mount
from local_backend.scheduler.model import Slot
from local_backend.vault import Vault
from local_backend.workload import Workload

#: Larger than any process id and any exit code.
_HIGHEST = 2**31
#: Times from here on (year 6325) are not from a runner. Python cannot show much later ones as dates.
_LATEST = 2**37
#: Longest reason or name of a signal, as the database stores it, and longest message.
_WORD, _TEXT = 40, 10_000


@dataclass(frozen=True)
class ProcessId:
    """Identity of one process. The pid alone is ambiguous, because the system reuses pids."""

    pid: int
    #: Start time in clock ticks since boot, as the system counts it.
    start_time: float


@dataclass(frozen=True)
class Launch:
    """All data that a runner needs. Written to job.json with the values of variables sealed."""

    spec: Workload
    attempt: int
    home: HomePaths
    slots: tuple[Slot, ...]
    #: Slots of the machine of the same kind as `slots`, to compute a fair share of the cores.
    machine_slots: int
    #: Environment that the job inherits, without the server's secrets. Variables that others set may be secret, too.
    environment: dict[str, str]
    stop_grace: float
    #: Seconds that a worker may take to leave a slot that was taken from its job.
    leave_grace: float = 60.0
    #: Fraction of each of its slots that a worker may use.
    share: float = 1.0
    #: The runner kills the job when this process ends; None: the job runs on.
    die_with: ProcessId | None = None
    #: Number of times that the exec was queued again after one of its attempts had begun.
    requeues: int = 0
    #: What the processes of the job see, if they run in a sandbox; see view.py.
    view: tuple[Mount, ...] | None = None
    #: Folder of the delegated control group, and the most processes of the job in it; see cgroup.py.
    control_group: str | None = None
    processes: int = 0
    #: Text that proves to the runner that a server connects. The server can read it, and no other user of the machine.
    proof: str = field(default_factory=lambda: secrets.token_hex(16))
    #: Whether torch.load reads whole objects by default: no other user can write to the data of the job.
    whole_objects: bool = True
    #: Number of finished epochs after which an elastic job rests; None: it trains to its end.
    rest: int | None = None

    @property
    def paths(self) -> ExecPaths:
        """Files of the exec."""
        return self.home.job(self.spec.id, self.spec.creator)

    def write(self) -> None:
        """Write job.json. Raises OSError. Raises VaultError when a value cannot be sealed, or when the runner could
        not open a sealed value."""
        vault = Vault(self.home.vault)
        _opened(self.spec, vault)
        value = asdict(self) | {
            "spec": self.spec.to_json(), "home": [str(path) for path in asdict(self.home).values()],
            "environment": vault.seal_text(json.dumps(self.environment)),
        }
        write_json(self.paths.spec, value, durable=False)  # the runner reads it before any restart of the machine

    @classmethod
    def read(cls, path: Path) -> Launch:
        """Read job.json and open its sealed values; do not write the result to a disk. Raises OSError, ValueError,
        KeyError or TypeError when there is no usable job.json."""
        value = _apart(lambda: _opened_file(path))
        return cls(**value | {
            "spec": Workload.from_json(value["spec"]),
            "home": HomePaths(*map(Path, value["home"])),
            "slots": tuple(Slot(**slot) for slot in value["slots"]),
            "view": None if value["view"] is None else tuple(map(tuple, value["view"])),
            "die_with": ProcessId(**value["die_with"]) if value["die_with"] else None,
        })


def _opened_file(path: Path) -> dict[str, Any]:
    """Return the content of job.json with its values opened. Raises OSError, ValueError, KeyError, TypeError or
    VaultError."""
    value: dict[str, Any] = json.loads(path.read_bytes())
    vault = Vault(HomePaths(*map(Path, value["home"])).vault)
    spec = _opened(Workload.from_json(value["spec"]), vault)
    return value | {"spec": spec.to_json(), "environment": json.loads(vault.open_text(value["environment"]))}


def _apart(found: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a function that runs in a child process. The keys of the vault never enter the memory of
    this process, from which processes of the job are forked. Raises OSError, and ValueError with the text of any other
    error."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = {"value": found()}
        except Exception as problem:
            answer = {"problem": {"text": str(problem) or type(problem).__name__}}
        try:
            with open(writer, "wb") as told:
                told.write(json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        text = said.read()
    os.waitpid(child, 0)
    answer = json.loads(text)
    if "problem" in answer:
        raise ValueError(answer["problem"]["text"])
    return answer["value"]


def server_proof(paths: ExecPaths) -> str:
    """Return the text that proves to the runner of the last attempt that a server connects. Raises OSError."""
    value = _read(paths.spec)
    return str(value.get("proof", "")) if isinstance(value, dict) else ""


def proves_server(proof: str, said: str) -> bool:
    """Return whether a text is the proof of a launch."""
    return bool(proof) and hmac.compare_digest(proof.encode(), said.encode(errors="replace"))


def _opened(spec: Workload, vault: Vault) -> Workload:
    variables = {name: vault.open_text(value) for name, value in spec.environment.variables.items()}
    return replace(spec, environment=replace(spec.environment, variables=variables))


def forget_variables(paths: ExecPaths) -> None:
    """Reduce a job.json of an earlier version, which has variables in clear text, to the values that are still read.
    Raises OSError."""
    value = _read(paths.spec)
    if isinstance(value, dict):
        spec = value.get("spec")
        found = json.loads(spec) if isinstance(spec, str) else value
        write_json(paths.spec, {"user": found.get("user"), "requeues": requeues(paths)})


def requeues(paths: ExecPaths) -> int:
    """Return how often an exec was queued again, according to its last launch. Raises OSError."""
    value = _read(paths.spec)
    count = value.get("requeues", 0) if isinstance(value, dict) else 0
    return count if isinstance(count, int) else 0


def read_restarts(paths: ExecPaths) -> Restarts:
    """Return the restarts of an exec since its last progress. Raises OSError."""
    match _read(paths.restarts):
        case {"fruitless": int(fruitless), "furthest": int() | float() as furthest,
              "reached": int() | float() as reached} if _numbers(fruitless, furthest, reached):
            return Restarts(fruitless, furthest, reached)
    return Restarts()


@dataclass(frozen=True)
class RunnerIdentity:
    """The process that runs an attempt; runner.json."""

    pid: int
    start_time: float
    boot_id: str
    attempt: int

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.start_time)


def read_identity(paths: ExecPaths) -> RunnerIdentity | None:
    """Read runner.json. Return None when no runner has ever begun, or when the content is not a runner's."""
    match _read(paths.runner):
        case {"pid": int(pid), "start_time": int() | float() as began, "boot_id": str(boot), "attempt": int(attempt)}:
            if 0 < pid < _HIGHEST and "\0" not in boot and _numbers(pid, began, attempt):
                return RunnerIdentity(pid, began, boot, attempt)
    return None


def read_outcome(paths: ExecPaths, attempt: int) -> Outcome | None:
    """Read exit.json of this attempt. Return None when the attempt has not ended, or when the content is invalid."""
    return parse_outcome(_read(paths.exit), attempt)


def parse_outcome(value: object, attempt: int) -> Outcome | None:
    """Return the outcome of this attempt in a JSON value. Return None for a value that no runner wrote."""
    match value:
        case {
            "attempt": int(found), "state": str(state), "end_time": int() | float() as ended,
            "exit_code": int() | None as code, "signal": str() | None as signal, "message": str() | None as message,
            "reason": str() | None as reason, "progress": said,
        } if found == attempt and (state in TERMINAL or state == PENDING):
            if 0 <= ended < _LATEST and -_HIGHEST < (code or 0) < _HIGHEST and _numbers(found, ended, code):
                return Outcome(
                    found, state, ended, code, _storable(signal, _WORD), _storable(message, _TEXT),
                    _storable(reason, _WORD), valid(said),
                )
    return None


def _numbers(*values: float | None) -> bool:
    """Return whether no value is a bool: Python treats `true` as 1, but a database may not."""
    return not any(isinstance(value, bool) for value in values)


def write_record(path: Path, record: RunnerIdentity | Outcome | Restarts) -> None:
    """Write runner.json, exit.json or restarts.json, durably. Raises OSError."""
    write_json(path, asdict(record))


def _read(path: Path) -> object:
    """Read a JSON file. Return None if the job has replaced the file with a folder. Raises OSError for other errors,
    which may be temporary."""
    try:
        try:
            return read_json(path)
        except PermissionError:
            for one in (path.parent, path):
                make_accessible(one)
            return read_json(path)
    except IsADirectoryError:
        return None


def _storable(text: str | None, longest: int) -> str | None:
    """Return a text that every database stores: without half surrogate pairs and NUL, cut to `longest` characters."""
    return text and text.encode(errors="replace").decode().replace("\0", "?")[:longest]


def make_accessible(path: Path) -> None:
    """Give the owner of a file or folder, if that is this user, access to it again. Raises no error."""
    with suppress(OSError):
        mode = path.lstat().st_mode
        needed = stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR | stat.S_IWUSR
        if not stat.S_ISLNK(mode) and mode & needed != needed:
            path.chmod(mode | needed)


def read_attempt(paths: ExecPaths) -> int:
    """Return the number of the attempt that may run; 0 if none may."""
    value = _read(paths.attempt)
    return value if isinstance(value, int) else 0


def write_attempt(paths: ExecPaths, attempt: int) -> None:
    """Allow `attempt` to run, and no earlier one. The caller must hold the lock. Raises OSError."""
    # Not durable: no runner outlives a restart of the machine, and the database has the number, too.
    write_atomic(paths.attempt, str(attempt).encode(), durable=False)


def try_lock(paths: ExecPaths) -> int | None:
    """Return a descriptor that holds runner.lock; None if another process holds the lock. Raises OSError.

    Closing the descriptor releases the lock, unless a child has inherited the descriptor.
    """
    fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
