"""Settings of a backend, from the environment and the flags of `local-backend serve`."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dlicmd.contract.home import home as default_home
from local_backend.runtime.paths import HomePaths


@dataclass(frozen=True)
class Limits:
    """Bounds on what a client may send. All can be set by the environment, see `FROM_ENVIRONMENT`."""

    upload_bytes: int = 20 * 2**30
    unpacked_bytes: int = 50 * 2**30
    unpacked_files: int = 200_000
    unpack_ratio: int = 200
    unpack_seconds: int = 600
    unpack_memory: int = 512 * 2**20


#: Environment variable → field of Limits.
FROM_ENVIRONMENT = {
    "DLI_MAX_UPLOAD_BYTES": "upload_bytes",
    "DLI_MAX_UNPACKED_BYTES": "unpacked_bytes",
    "DLI_MAX_UNPACKED_FILES": "unpacked_files",
    "DLI_MAX_UNPACK_RATIO": "unpack_ratio",
    "DLI_MAX_UNPACK_SECONDS": "unpack_seconds",
    "DLI_MAX_UNPACK_MEMORY": "unpack_memory",
}

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Labels that every node of a cluster has.
MACHINE_LABELS: Mapping[str, str] = {
    "kubernetes.io/hostname": platform.node(),
    "kubernetes.io/os": platform.system().lower(),
    "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
}


@dataclass(frozen=True)
class Settings:
    """One backend. `embedded` means: loopback, one user, paths of this machine are the user's own."""

    home: Path
    data_fs: Path
    result_fs: Path
    user: str
    embedded: bool = True
    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: Certificate and key are made by the server itself, below its home; the two above are None then.
    tls_self_signed: bool = False
    #: Number of slots; None to count the machine's devices.
    slots: int | None = None
    #: What node selectors choose by.
    node_labels: Mapping[str, str] = field(default_factory=lambda: MACHINE_LABELS)
    #: Seconds between SIGTERM and SIGKILL when an exec is stopped.
    stop_grace: float = 10.0
    #: Seconds that a worker may take to leave a slot that was taken from its job: a step, and what it puts away.
    leave_grace: float = 60.0
    #: Seconds between two looks at the health of the GPUs.
    health_every: float = 10.0
    #: Seconds after which an unused nursery gives its memory back.
    nursery_idle: float = 600.0
    #: Kill all jobs when the server dies (for CI machines).
    die_with_server: bool = False
    #: Lifetime of a token made by logon, in seconds.
    token_seconds: float = 12 * 3600
    limits: Limits = field(default_factory=Limits)

    @property
    def speaks_tls(self) -> bool:
        return self.tls_cert is not None or self.tls_self_signed

    @property
    def paths(self) -> HomePaths:
        """The file names of this backend."""
        return HomePaths(self.home, self.data_fs, self.result_fs)

    @classmethod
    def from_environment(cls, **flags: object) -> Settings:
        """Settings from DLICMD_HOME, DLI_DATA_FS, DLI_RESULT_FS, DLI_SLOTS, ...; `flags` that are not None win.

        Raises ValueError with a sentence for the user when a variable has a bad value.
        """
        home = default_home()
        values: dict[str, object] = {
            "home": home,
            "data_fs": _directory("DLI_DATA_FS", home / "data"),
            "result_fs": _directory("DLI_RESULT_FS", home / "results"),
            "user": user_name(),
            "slots": _number("DLI_SLOTS", 0, 100_000),
            "node_labels": _labels("DLI_NODE_LABELS"),
            "stop_grace": _number("DLI_STOP_GRACE", 0, 86_400),
            "leave_grace": _number("DLI_LEAVE_GRACE", 0, 86_400),
            "health_every": _number("DLI_HEALTH_SECONDS", 1, 86_400),
            "nursery_idle": _number("DLI_NURSERY_IDLE", 0, 10**9),
            "token_seconds": _number("DLI_TOKEN_SECONDS", 1, 10**9),
            "limits": Limits(**{
                name: value
                for variable, name in FROM_ENVIRONMENT.items()
                if (value := _number(variable, 1, 2**60)) is not None
            }),
        }
        values = {name: value for name, value in values.items() if value is not None}
        values.update({name: value for name, value in flags.items() if value is not None})
        return cls(**values)  # type: ignore[arg-type]


def _directory(variable: str, default: Path) -> Path:
    named = os.environ.get(variable)
    return Path(named).expanduser().absolute() if named else default


def _number(variable: str, least: int, most: int) -> int | None:
    text = os.environ.get(variable)
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ValueError(f"{variable} must be a whole number between {least} and {most}, not '{text}'")
    return int(text)


def _labels(variable: str) -> dict[str, str]:
    """The labels of the machine: those that every Kubernetes node has, and `label=value,label=value`."""
    found = dict(MACHINE_LABELS)
    for word in filter(None, (word.strip() for word in os.environ.get(variable, "").split(","))):
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{variable} must be label=value,label=value, not '{word}'")
        found[name.strip()] = value.strip()
    return found


def user_name() -> str:
    """Name of the user this process runs as, fit for a path."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "user"
