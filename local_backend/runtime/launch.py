"""The files through which supervisor and runner talk: job.json, attempt, runner.json, exit.json.

Each has one writer, is replaced whole, and carries the number of the attempt it belongs to.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dlicmd.contract.states import TERMINAL
from local_backend.files import read_json, write_atomic, write_json
from local_backend.jobspec import JobSpec
from local_backend.runtime.paths import ExecPaths, HomePaths
from local_backend.scheduler.model import Slot
from local_backend.vault import Vault

#: Above all numbers of processes and exit codes.
_HIGHEST = 2**31


@dataclass(frozen=True)
class ProcessId:
    """One process, without the ambiguity of a number that is used again."""

    pid: int
    #: Start time in clock ticks since boot, as the system counts it.
    start_time: float


@dataclass(frozen=True)
class Launch:
    """Everything that a runner needs to know; job.json, where the values of variables are sealed."""

    spec: JobSpec
    attempt: int
    home: HomePaths
    slots: tuple[Slot, ...]
    #: Number of slots of the machine of the kind of `slots`, for a fair share of the cores.
    machine_slots: int
    #: Environment that the job inherits, without the server's secrets; what others have put there may be secret, too.
    environment: dict[str, str]
    stop_grace: float
    #: Seconds that a worker may take to leave a slot that was taken from its job.
    leave_grace: float = 60.0
    #: Part of each of its slots that a worker may use.
    share: float = 1.0
    #: Kill the job when this process ends; None to let it run on.
    die_with: ProcessId | None = None
    #: How often the exec was queued again after the machine had rebooted under it.
    requeues: int = 0

    @property
    def paths(self) -> ExecPaths:
        """Files of the exec."""
        return self.home.job(self.spec.exec_id, self.spec.user)

    def write(self) -> None:
        """Write job.json, durably. Raises OSError, and VaultError when something cannot be sealed, or its runner could
        not open what is."""
        vault = Vault(self.home.vault)
        _opened(self.spec, vault)
        value = asdict(self) | {
            "spec": self.spec.to_json(), "home": [str(path) for path in asdict(self.home).values()],
            "environment": vault.seal_text(json.dumps(self.environment)),
        }
        write_json(self.paths.spec, value)

    @classmethod
    def read(cls, path: Path) -> Launch:
        """Read job.json; nothing is sealed in what this answers, which is for no disk. Raises OSError, ValueError,
        KeyError, TypeError or VaultError when there is no usable one."""
        value = json.loads(path.read_bytes())
        home = HomePaths(*map(Path, value["home"]))
        vault = Vault(home.vault)
        return cls(**value | {
            "spec": _opened(JobSpec.from_json(value["spec"]), vault),
            "home": home,
            "environment": json.loads(vault.open_text(value["environment"])),
            "slots": tuple(Slot(**slot) for slot in value["slots"]),
            "die_with": ProcessId(**value["die_with"]) if value["die_with"] else None,
        })


def _opened(spec: JobSpec, vault: Vault) -> JobSpec:
    return replace(spec, env={name: vault.open_text(value) for name, value in spec.env.items()})


def forget_variables(paths: ExecPaths) -> None:
    """Leave of a job.json that an earlier version has written, with variables in clear, what is still asked of it.
    Raises OSError."""
    value = _read(paths.spec)
    if isinstance(value, dict):
        spec = value.get("spec")
        found = json.loads(spec) if isinstance(spec, str) else value
        write_json(paths.spec, {"user": found.get("user"), "requeues": requeues(paths)})


def requeues(paths: ExecPaths) -> int:
    """How often an exec was queued again, according to its last launch."""
    value = _read(paths.spec)
    count = value.get("requeues", 0) if isinstance(value, dict) else 0
    return count if isinstance(count, int) else 0


@dataclass(frozen=True)
class RunnerIdentity:
    """Who runs an attempt; runner.json."""

    pid: int
    start_time: float
    boot_id: str
    attempt: int

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.start_time)


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended; exit.json."""

    attempt: int
    state: str
    end_time: float
    exit_code: int | None = None
    #: Name of the signal that ended the first failing process.
    signal: str | None = None
    message: str | None = None
    reason: str | None = None


def read_identity(paths: ExecPaths) -> RunnerIdentity | None:
    """runner.json, None when no runner has ever begun, or somebody else has written there."""
    match _read(paths.runner):
        case {"pid": int(pid), "start_time": int() | float() as began, "boot_id": str(boot), "attempt": int(attempt)}:
            if 0 < pid < _HIGHEST and "\0" not in boot and _numbers(pid, began, attempt):
                return RunnerIdentity(pid, began, boot, attempt)
    return None


def read_outcome(paths: ExecPaths, attempt: int) -> Outcome | None:
    """exit.json of this attempt; None when it has not ended, or not in order."""
    match _read(paths.exit):
        case {
            "attempt": int(found), "state": str(state), "end_time": int() | float() as ended,
            "exit_code": int() | None as code, "signal": str() | None as signal, "message": str() | None as message,
            "reason": str() | None as reason,
        } if found == attempt and state in TERMINAL:
            if 0 <= ended < _HIGHEST**2 and -_HIGHEST < (code or 0) < _HIGHEST and _numbers(found, ended, code):
                return Outcome(found, state, ended, code, _storable(signal), _storable(message), _storable(reason))
    return None


def _numbers(*values: float | None) -> bool:
    """Whether none of them is `true`: Python takes that for 1, and a database may not."""
    return not any(isinstance(value, bool) for value in values)


def write_record(path: Path, record: RunnerIdentity | Outcome) -> None:
    """Write runner.json or exit.json, durably. Raises OSError."""
    write_json(path, asdict(record))


def _read(path: Path) -> object:
    """What is in a file that the job itself could have replaced, by a folder, say. Raises OSError for other troubles,
    which may pass."""
    try:
        return read_json(path)
    except (IsADirectoryError, PermissionError):
        return None


def _storable(text: str | None) -> str | None:
    return text and text.encode(errors="replace").decode()


def read_attempt(paths: ExecPaths) -> int:
    """The attempt that may run; 0 when none may."""
    value = _read(paths.attempt)
    return value if isinstance(value, int) else 0


def write_attempt(paths: ExecPaths, attempt: int) -> None:
    """Allow `attempt` to run, and no earlier one. The caller holds the lock. Raises OSError."""
    write_atomic(paths.attempt, str(attempt).encode())


def try_lock(paths: ExecPaths) -> int | None:
    """A descriptor that holds runner.lock, None when someone else holds it. Raises OSError.

    Closing it releases the lock, provided that no child has inherited it.
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
