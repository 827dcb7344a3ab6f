"""Settings of a backend, from the flags of `local-backend serve`, the environment and a file."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlicmd.contract.home import home as default_home
from local_backend import logs
from local_backend.runtime.paths import HomePaths
from local_backend.setting_source import BY_KEY, Given, given

if TYPE_CHECKING:
    from sqlalchemy.engine import URL


@dataclass(frozen=True)
class Limits:
    """Limits on the input of clients. The environment can set all of them, see `FROM_ENVIRONMENT`."""

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

#: Variables of `FROM_ENVIRONMENT` that are bytes, and may have a unit.
SIZES = frozenset({"DLI_MAX_UPLOAD_BYTES", "DLI_MAX_UNPACKED_BYTES", "DLI_MAX_UNPACK_MEMORY"})


@dataclass(frozen=True)
class Quotas:
    """Quotas of each user, and how long ended execs are kept; None means no limit. Bytes are those of programs, results
    and logs."""

    active_execs: int | None = None
    stored_execs: int | None = None
    stored_bytes: int | None = None
    #: A submission is refused if it would leave fewer free bytes on a disk.
    free_bytes: int = 64 * 2**20
    keep_days: int | None = None
    keep_bytes: int | None = None

    @property
    def limit_users(self) -> bool:
        """Whether a quota limits users."""
        return (self.active_execs, self.stored_execs, self.stored_bytes) != (None, None, None)

    @property
    def need_sizes(self) -> bool:
        """Whether the sizes of execs in bytes count."""
        return self.stored_bytes is not None or self.keep_bytes is not None


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Labels that every Kubernetes node has.
MACHINE_LABELS: Mapping[str, str] = {
    "kubernetes.io/hostname": platform.node(),
    "kubernetes.io/os": platform.system().lower(),
    "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
}


@dataclass(frozen=True)
class Settings:
    """Settings of one backend. `embedded` means: loopback, one user, and paths of this machine are the user's own."""

    home: Path
    data_fs: Path
    result_fs: Path
    user: str
    embedded: bool = True
    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: The server makes certificate and key itself, below its home; `tls_cert` and `tls_key` are then None.
    tls_self_signed: bool = False
    #: Number of slots; None to count the machine's devices.
    slots: int | None = None
    #: Labels of this machine, for node selectors.
    node_labels: Mapping[str, str] = field(default_factory=lambda: MACHINE_LABELS)
    #: Seconds between SIGTERM and SIGKILL when an exec is stopped.
    stop_grace: float = 10.0
    #: Seconds that a worker may take to leave a slot that was taken from its job: time to finish a step and save state.
    leave_grace: float = 60.0
    #: Seconds between two health checks of the GPUs.
    health_every: float = 10.0
    #: Seconds after which an idle nursery ends, to free its memory.
    nursery_idle: float = 600.0
    #: Kill all jobs when the server dies (for CI machines).
    die_with_server: bool = False
    #: Format and level of the server's own log (see logs.py), and the bytes after which a new file begins.
    log_format: str = "text"
    log_level: str = "info"
    log_bytes: int = 10 * 2**20
    #: Whether GET /metrics needs no token.
    open_metrics: bool = False
    #: Bytes that must be free on the disks of state and results, or else the server is not ready.
    ready_free_bytes: int = 256 * 2**20
    #: Address of a PostgreSQL database, possibly with its password; None for the file in the home.
    database: str | None = field(default=None, repr=False)
    #: File with connections, in addition to those in the database.
    connections: Path | None = None
    #: Folder where programs find storage volumes, one directory per volume; None for a folder of the home.
    volume_root: Path | None = None
    #: Cache of fetched data, for later jobs that need the same data; None for a folder of the home.
    cache_dir: Path | None = None
    #: Cache of data for jobs that want it on the storage of DLI_DATA_FS; None for a folder beside DLI_DATA_FS.
    shared_cache_dir: Path | None = None
    #: Maximum bytes of each cache.
    cache_bytes: int = 100 * 2**30
    #: Seconds that a job waits for data of which no byte arrives.
    data_patience: float = 600.0
    #: Maximum rows of a table that a data source names, and maximum seconds to read it; None means no limit.
    data_rows: int | None = None
    data_seconds: float | None = None
    #: Lifetime of a token made by logon, in seconds.
    token_seconds: float = 12 * 3600
    limits: Limits = field(default_factory=Limits)
    quotas: Quotas = field(default_factory=Quotas)
    #: The values that flags, environment and file set, with their sources.
    said: Given = field(default=Given({}, {}), repr=False, compare=False)

    @property
    def speaks_tls(self) -> bool:
        return self.tls_cert is not None or self.tls_self_signed

    @property
    def paths(self) -> HomePaths:
        """The file names of this backend."""
        return HomePaths(self.home, self.data_fs, self.result_fs)

    @property
    def volumes(self) -> Path:
        """The folder of storage volumes."""
        return self.volume_root or self.paths.volumes

    @property
    def cache(self) -> Path:
        """The cache of this machine."""
        return self.cache_dir or self.paths.cache

    @property
    def where(self) -> Path | URL:
        """The file or the address of the database. Raises ValueError for an invalid address."""
        if self.database is None:
            return self.paths.database
        from local_backend.store.postgres import parse

        return parse(self.database)

    @classmethod
    def from_environment(cls, more: Sequence[str] = (), **flags: object) -> Settings:
        """Return the settings. For each setting, the first source that has it counts: the `flags` that are not None;
        `more`, words of the form key=value; the environment; DLICMD_HOME/server.yaml. setting_source.py lists all
        settings.

        Raises ValueError with a sentence for the user when a value is bad.
        """
        home = default_home()
        return cls.of(home, given(home, more, flags), **flags)

    @classmethod
    def of(cls, home: Path, found: Given, **flags: object) -> Settings:
        """Return the settings from `found`, and from the `flags` that are not in the table of settings. Without the
        flag `embedded`, a server is embedded if it has neither address nor certificate. Raises ValueError."""
        values: dict[str, object] = {
            "home": home,
            "said": found,
            "host": found.text("DLI_HOST"),
            "port": found.number("DLI_PORT", 0, 65_535),
            "tls_cert": found.path("DLI_TLS_CERT"),
            "tls_key": found.path("DLI_TLS_KEY"),
            "data_fs": found.path("DLI_DATA_FS") or home / "data",
            "result_fs": found.path("DLI_RESULT_FS") or home / "results",
            "user": user_name(),
            "slots": found.number("DLI_SLOTS", 0, 100_000),
            "node_labels": _labels(found, "DLI_NODE_LABELS"),
            "stop_grace": found.number("DLI_STOP_GRACE", 0, 86_400),
            "leave_grace": found.number("DLI_LEAVE_GRACE", 0, 86_400),
            "health_every": found.number("DLI_HEALTH_SECONDS", 1, 86_400),
            "nursery_idle": found.number("DLI_NURSERY_IDLE", 0, 10**9),
            "log_format": found.choice("DLI_LOG_FORMAT", logs.FORMATS),
            "log_level": found.choice("DLI_LOG_LEVEL", logs.LEVELS),
            "log_bytes": found.size("DLI_LOG_BYTES", 4096),
            "open_metrics": found.switch("DLI_OPEN_METRICS"),
            "ready_free_bytes": found.size("DLI_READY_FREE_BYTES", 0),
            "database": found.text("DLI_DATABASE"),
            "connections": found.path("DLI_CONNECTIONS"),
            "volume_root": found.path("DLI_VOLUMES"),
            "cache_dir": found.path("DLI_CACHE_DIR"),
            "shared_cache_dir": found.path("DLI_SHARED_CACHE_DIR"),
            "cache_bytes": found.size("DLI_CACHE_BYTES"),
            "data_patience": found.number("DLI_DATA_PATIENCE", 0, 10**9),
            "data_rows": found.number("DLI_DATA_ROWS", 1, 10**15),
            "data_seconds": found.number("DLI_DATA_SECONDS", 1, 10**9),
            "token_seconds": found.number("DLI_TOKEN_SECONDS", 1, 10**9),
            "limits": Limits(**_known({
                name: found.size(variable) if variable in SIZES else found.number(variable, 1, 2**60)
                for variable, name in FROM_ENVIRONMENT.items()
            })),
            "quotas": _quotas(found),
        }
        values = _known(values) | {name: flag for name, flag in _known(flags).items() if name not in BY_KEY}
        values["embedded"] = bool(flags.get("embedded")) or not {"host", "tls_cert", "tls_self_signed"} & set(values)
        settings = cls(**values)  # type: ignore[arg-type]
        for variable, folder in (("DLI_CACHE_DIR", settings.cache_dir),
                                 ("DLI_SHARED_CACHE_DIR", settings.shared_cache_dir)):
            if folder is not None and _overlap(folder, settings.data_fs):
                raise found.wrong(variable,
                                  f"a folder that is not in DLI_DATA_FS ({settings.data_fs}), which all jobs can "
                                  "read, and that does not contain it")
        try:
            _ = settings.where
        except ValueError as problem:
            raise ValueError(f"{problem} (--database, DLI_DATABASE)") from None
        return settings


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _overlap(one: Path, other: Path) -> bool:
    """Return whether two folders are the same, or one is inside the other."""
    real, other_real = one.resolve(), other.resolve()
    return real.is_relative_to(other_real) or other_real.is_relative_to(real)


def _quotas(found: Given) -> Quotas:
    return Quotas(**_known({
        "active_execs": found.number("DLI_USER_ACTIVE_EXECS", 1, 10**9),
        "stored_execs": found.number("DLI_USER_STORED_EXECS", 1, 10**9),
        "stored_bytes": found.size("DLI_USER_STORED_BYTES"),
        "free_bytes": found.size("DLI_MIN_FREE_BYTES"),
        "keep_days": found.number("DLI_KEEP_DAYS", 1, 100_000),
        "keep_bytes": found.size("DLI_KEEP_BYTES"),
    }))


def _labels(found: Given, variable: str) -> dict[str, str]:
    """Return the labels of the machine: the labels that every Kubernetes node has, and those of a variable of the form
    `label=value,label=value`."""
    labels = dict(MACHINE_LABELS)
    for word in filter(None, (word.strip() for word in (found.text(variable) or "").split(","))):
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise found.wrong(variable, "label=value,label=value")
        labels[name.strip()] = value.strip()
    return labels


def user_name() -> str:
    """Return the name of the user that this process runs as, in a form that paths can contain."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "user"
