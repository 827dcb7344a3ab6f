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
from local_backend.setting_kinds import (
    FILE,
    ISSUER,
    SOCKET,
    SWITCH,
    TEXT,
    WORDS,
    Setting,
    choice,
    labels,
    number,
    setting,
    settings_of,
    size,
    stated,
)
from local_backend.setting_source import GivenSettings, given

if TYPE_CHECKING:
    from sqlalchemy.engine import URL


@dataclass(frozen=True)
class Limits:
    """Limits on the input of clients."""

    upload_bytes: int = setting(20 * 2**30, "DLI_MAX_UPLOAD_BYTES", size(), "maximum bytes of an upload")
    unpacked_bytes: int = setting(
        50 * 2**30, "DLI_MAX_UNPACKED_BYTES", size(), "maximum bytes of the unpacked upload")
    unpacked_files: int = setting(
        200_000, "DLI_MAX_UNPACKED_FILES", number(1, 2**60), "maximum files in an upload")
    unpack_ratio: int = setting(
        200, "DLI_MAX_UNPACK_RATIO", number(1, 2**60),
        "maximum unpacked bytes for each byte of the archive, if they are more than 1 GiB")
    unpack_seconds: int = setting(
        600, "DLI_MAX_UNPACK_SECONDS", number(1, 2**60), "maximum seconds to unpack an upload")
    unpack_memory: int = setting(
        512 * 2**20, "DLI_MAX_UNPACK_MEMORY", size(), "maximum memory to unpack an upload")


def _on_a_team(limit: str) -> str:
    """Return the text of a default that only servers for several users have."""
    return f"{limit} on a server for a team, else no limit"


@dataclass(frozen=True)
class Quotas:
    """Quotas of each user, and how long ended execs are kept; None means no limit. Bytes are those of programs, results
    and logs. A server for a team begins with the quotas of `for_a_team`."""

    active_execs: int | None = setting(
        None, "DLI_USER_ACTIVE_EXECS", number(1, 10**9), "maximum pending and running execs of one user",
        _on_a_team("1,000"))
    active_searches: int | None = setting(
        None, "DLI_USER_ACTIVE_SEARCHES", number(1, 10**9),
        "maximum [searches](rest-extensions.md#searches) of one user that are not over",
        _on_a_team("20"))
    stored_searches: int | None = setting(
        None, "DLI_USER_STORED_SEARCHES", number(1, 10**9),
        "maximum searches of one user, including those that are over", _on_a_team("1,000"))
    models: int | None = setting(
        None, "DLI_USER_MODELS", number(1, 10**9), "maximum [models](inference.md) of one user", _on_a_team("200"))
    started_models: int | None = setting(
        None, "DLI_USER_STARTED_MODELS", number(1, 10**9), "maximum started models of one user", _on_a_team("50"))
    stored_execs: int | None = setting(
        None, "DLI_USER_STORED_EXECS", number(1, 10**9),
        "maximum execs of one user, including pending, running and finished execs", "no limit")
    stored_bytes: int | None = setting(
        None, "DLI_USER_STORED_BYTES", size(),
        "maximum bytes of the execs of one user: programs, results, logs, and the packages that the user installed",
        _on_a_team("200 GiB"))
    calls_per_second: int | None = setting(
        None, "DLI_USER_CALLS_PER_SECOND", number(1, 10**6),
        "maximum calls of one user per second, also in one burst; further calls wait",
        _on_a_team("100"))
    submissions_per_minute: int | None = setting(
        None, "DLI_USER_SUBMISSIONS_PER_MINUTE", number(1, 10**9), "maximum submissions of one user within a minute",
        _on_a_team("300"))
    streams: int | None = setting(
        None, "DLI_USER_STREAMS", number(1, 10**9),
        "maximum open streams of one user: followed jobs, logs, files and results that are being sent",
        _on_a_team("64"))
    uploads: int | None = setting(
        None, "DLI_USER_UPLOADS", number(1, 10**9), "maximum simultaneous uploads of one user", _on_a_team("16"))
    upload_seconds: int | None = setting(
        None, "DLI_USER_UPLOAD_SECONDS", number(1, 10**9), "maximum seconds of an upload", _on_a_team("3,600"))
    free_bytes: int = setting(
        64 * 2**20, "DLI_MIN_FREE_BYTES", size(),
        "minimum free bytes on the disks of home and results; below it, no submission is accepted")
    keep_days: int | None = setting(
        None, "DLI_KEEP_DAYS", number(1, 100_000), "days after which a finished exec is removed", "kept")
    keep_bytes: int | None = setting(
        None, "DLI_KEEP_BYTES", size(),
        "total bytes of all execs; above it, the oldest finished execs are removed", "no limit")

    @classmethod
    def for_a_team(cls, **given: Any) -> Quotas:
        """Return the quotas of a server for a team: those given, and defaults for the others."""
        return cls(**{
            "active_execs": 1000, "active_searches": 20, "stored_searches": 1000, "models": 200, "started_models": 50,
            "stored_bytes": 200 * 2**30, "calls_per_second": 100, "submissions_per_minute": 300, "streams": 64,
            "uploads": 16, "upload_seconds": 3600, **given})

    @property
    def limit_users(self) -> bool:
        """Whether a quota limits users."""
        return (self.active_execs, self.stored_execs, self.stored_bytes) != (None, None, None)

    @property
    def need_sizes(self) -> bool:
        """Whether the sizes of execs in bytes count."""
        return self.stored_bytes is not None or self.keep_bytes is not None


@dataclass(frozen=True)
class OidcSettings:
    """Logons with the accounts of an OIDC issuer; off without an issuer."""

    issuer: str | None = setting(
        None, "DLI_OIDC_ISSUER", ISSUER, "issuer of [OIDC logons](team-server.md#oidc-logons): its exact `iss`", "off")
    client_id: str | None = setting(
        None, "DLI_OIDC_CLIENT_ID", TEXT, "ID of `dlicmd` at the issuer, as a public client with the device grant",
        "none")
    audience: str | None = setting(
        None, "DLI_OIDC_AUDIENCE", TEXT, "`aud` that tokens must have", "the value of `DLI_OIDC_CLIENT_ID`")
    scopes: str = setting(
        "openid profile email", "DLI_OIDC_SCOPES", TEXT, "scopes that `dlicmd login --oidc` asks for",
        "`openid profile email`")
    user_claim: str = setting(
        "preferred_username", "DLI_OIDC_USER_CLAIM", TEXT, "claim with the name of a new user", "`preferred_username`")
    subject_claim: str = setting(
        "sub", "DLI_OIDC_SUBJECT_CLAIM", TEXT, "claim that identifies an account for ever", "`sub`")
    admin_claim: str | None = setting(
        None, "DLI_OIDC_ADMIN_CLAIM", TEXT,
        "claim that decides the role at each logon, such as `groups` or `realm_access.roles`",
        "the role of the user stays")
    admin_values: tuple[str, ...] = setting(
        (), "DLI_OIDC_ADMIN_VALUES", WORDS, "values of this claim, separated by commas, that make an administrator",
        "none")
    create_users: bool = setting(
        False, "DLI_OIDC_CREATE_USERS", SWITCH, "`true`: the first logon of an account makes its user")
    authority: Path | None = setting(
        None, "DLI_OIDC_CA_CERT", FILE, "certificate authority of the issuer", "those of the system")


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
    data_fs: Path = field(metadata=stated(
        "DLI_DATA_FS", FILE, "base folder of relative `data_path` values", "`DLICMD_HOME/data`"))
    result_fs: Path = field(metadata=stated(
        "DLI_RESULT_FS", FILE, "folder where jobs write their results", "`DLICMD_HOME/results`"))
    user: str
    embedded: bool = True
    #: The server makes certificate and key itself, below its home; `tls_cert` and `tls_key` are then None.
    tls_self_signed: bool = False
    #: Kill all jobs when the server dies (for CI machines).
    die_with_server: bool = False
    host: str = setting(
        "127.0.0.1", "DLI_HOST", TEXT, "address to listen on (`--host`); any address other than the loopback needs TLS")
    port: int = setting(
        0, "DLI_PORT", number(0, 65_535), "port to listen on (`--port`); 0 takes the last port, or any free one")
    inference_host: str | None = setting(
        None, "DLI_INFERENCE_HOST", TEXT, "address where the gateway takes requests for [models](inference.md)",
        "the value of `DLI_HOST`")
    inference_port: int = setting(
        0, "DLI_INFERENCE_PORT", number(0, 65_535),
        "port of the gateway, for HTTP and gRPC; 0 chooses a free port, which the gateway keeps")
    inference_grpc_port: int | None = setting(
        None, "DLI_INFERENCE_GRPC_PORT", number(0, 65_535), "second port of the gateway, for gRPC clients alone; 0 "
        "chooses a free port", "none")
    inference_idle: float = setting(
        60.0, "DLI_INFERENCE_IDLE", number(0, 10**9),
        "seconds after which the gateway ends when no model is started")
    tls_cert: Path | None = setting(
        None, "DLI_TLS_CERT", FILE, "certificate (chain) in PEM form (`--tls-cert`)", "none")
    tls_key: Path | None = setting(
        None, "DLI_TLS_KEY", FILE, "private key of the certificate (`--tls-key`)", "none")
    allowed_hosts: tuple[str, ...] = setting(
        (), "DLI_ALLOWED_HOSTS", WORDS,
        "additional host names, separated by commas, that clients may use for this server", "none")
    database: str | None = setting(
        None, "DLI_DATABASE", TEXT, "address of a [PostgreSQL](#postgresql) database (`--database`)",
        "a file of the home", secret=True)
    token_seconds: float = setting(
        12 * 3600.0, "DLI_TOKEN_SECONDS", number(1, 10**9), "lifetime of a token made by `--logon`")
    api_token_days: int = setting(
        365, "DLI_API_TOKEN_DAYS", number(1, 100_000),
        "maximum days for which a [token for a program](team-server.md#tokens-for-programs) may be valid")
    #: File with connections, in addition to those in the database.
    connections: Path | None = setting(
        None, "DLI_CONNECTIONS", FILE, "YAML file with [connections](connections.md) (`--connections`)", "none")
    volume_root: Path | None = setting(
        None, "DLI_VOLUMES", FILE,
        "folder where programs find [storage volumes](data-sources.md#storage-volumes); WMLA's was `/mnts`",
        "`DLICMD_HOME/volumes`")
    data_rows: int | None = setting(
        None, "DLI_DATA_ROWS", number(1, 10**15), "maximum rows of a [table](data-tables.md) in a data source",
        "no limit")
    data_seconds: float | None = setting(
        None, "DLI_DATA_SECONDS", number(1, 10**9), "maximum seconds to read such a table", "no limit")
    cache_dir: Path | None = setting(
        None, "DLI_CACHE_DIR", FILE,
        "cache for [data from elsewhere](data-sources.md#data-from-elsewhere), which later jobs use again",
        "`DLICMD_HOME/cache`")
    shared_cache_dir: Path | None = setting(
        None, "DLI_SHARED_CACHE_DIR", FILE,
        "the same cache for data sources with the target `shared`; never in `DLI_DATA_FS`",
        "a folder next to `DLI_DATA_FS`")
    cache_bytes: int = setting(
        100 * 2**30, "DLI_CACHE_BYTES", size(),
        "maximum bytes of each cache; the data that was unused for the longest time is removed first")
    data_patience: float = setting(
        600.0, "DLI_DATA_PATIENCE", number(0, 10**9),
        "maximum seconds that a job waits for data while nothing arrives")
    #: None to count the machine's devices.
    #: Run jobs of a server for a team without a sandbox.
    jobs_share_server_account: bool = setting(
        False, "DLI_JOBS_SHARE_SERVER_ACCOUNT", SWITCH,
        "`true`: jobs of a server for a team are not [isolated](team-server.md#isolation) "
        "(`--jobs-share-server-account`)")
    job_folders: tuple[str, ...] = setting(
        (), "DLI_JOB_FOLDERS", WORDS,
        "additional folders, separated by commas, that [isolated](team-server.md#isolation) jobs may read", "none")
    job_processes: int = setting(
        4096, "DLI_JOB_PROCESSES", number(64, 10**6),
        "maximum processes and threads of an isolated job, or of a call of an installed search algorithm, where the "
        "server has a "
        "[control group](team-server.md#limits-of-jobs)")
    plugin_roots: tuple[str, ...] = setting(
        (), "DLI_PLUGIN_ROOTS", WORDS,
        "folders, separated by commas, from which search algorithms may be installed by a path of the server", "none")
    plugin_seconds: int = setting(
        300, "DLI_PLUGIN_SECONDS", number(1, 86_400),
        "maximum seconds, of CPU time and in all, for one call of an installed search algorithm")
    plugin_memory: int = setting(
        4 * 2**30, "DLI_PLUGIN_MEMORY", size(64 * 2**20), "maximum bytes of memory of an installed search algorithm")
    slots: int | None = setting(
        None, "DLI_SLOTS", number(0, 100_000), "number of slots, instead of counting GPUs or cores (`--slots`)",
        "counted")
    #: None for the memory of the machine.
    memory: int | None = setting(
        None, "DLI_MEMORY", size(2**20), "bytes of memory that all jobs together may ask for",
        "those of the machine, or of the server's control group")
    node_labels: Mapping[str, str] = field(default_factory=lambda: MACHINE_LABELS, metadata=stated(
        "DLI_NODE_LABELS", labels(MACHINE_LABELS),
        "`label=value,label=value` for node selectors, in addition to the labels that every node has", "none"))
    health_every: float = setting(
        10.0, "DLI_HEALTH_SECONDS", number(1, 86_400), "seconds between 2 checks of the GPUs")
    leave_grace: float = setting(
        60.0, "DLI_LEAVE_GRACE", number(0, 86_400),
        "maximum seconds for a worker to leave a slot that the scheduler took from its job")
    rested_kept: int = setting(
        4, "DLI_RESTED_KEPT", number(0, 10_000),
        "maximum number of jobs that keep their processes while a search has set them aside; other such jobs continue "
        "from their snapshots")
    stop_grace: float = setting(
        10.0, "DLI_STOP_GRACE", number(0, 86_400), "seconds between SIGTERM and SIGKILL when a job is stopped")
    nursery_idle: float = setting(
        600.0, "DLI_NURSERY_IDLE", number(0, 10**9),
        "seconds after which the warm process for fast starts frees its memory")
    log_format: str = setting(
        "text", "DLI_LOG_FORMAT", choice(*logs.FORMATS),
        "format of [the log](#the-log): `text` or `json` (`--log-format`)")
    log_level: str = setting(
        "info", "DLI_LOG_LEVEL", choice(*logs.LEVELS), "lowest level that is logged (`--log-level`)")
    log_bytes: int = setting(10 * 2**20, "DLI_LOG_BYTES", size(4096), "bytes after which a new log file begins")
    audit_syslog: str | None = setting(
        None, "DLI_AUDIT_SYSLOG", SOCKET,
        "syslog daemon that also gets [the audit records](#the-audit-log): `/dev/log`, or `HOST:PORT` for UDP", "none")
    audit_journal: Path | None = setting(
        None, "DLI_AUDIT_JOURNAL", FILE,
        "socket of journald, which also gets the audit records: usually `/run/systemd/journal/socket`", "none")
    open_metrics: bool = setting(
        False, "DLI_OPEN_METRICS", SWITCH, "`true`: `/metrics` needs no token (`--open-metrics`)")
    ready_free_bytes: int = setting(
        256 * 2**20, "DLI_READY_FREE_BYTES", size(0), "minimum free bytes for `/readyz`")
    limits: Limits = field(default_factory=Limits)
    quotas: Quotas = field(default_factory=Quotas)
    oidc: OidcSettings = field(default_factory=OidcSettings)
    #: The values that flags, environment and file set, with their sources.
    said: GivenSettings = field(default=GivenSettings({}, {}), repr=False, compare=False)

    @property
    def isolates_jobs(self) -> bool:
        """Whether jobs run in sandboxes: on servers that are not embedded, except with `jobs_share_server_account`."""
        return not (self.embedded or self.jobs_share_server_account)

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
        `more`, words of the form key=value; the environment; DLICMD_HOME/server.yaml. TABLE lists all settings.

        Raises ValueError with a sentence for the user when a value is bad.
        """
        home = default_home()
        return cls.of(home, given(TABLE, home, more, flags), **flags)

    @classmethod
    def of(cls, home: Path, found: GivenSettings, **flags: object) -> Settings:
        """Return the settings from `found`, and from the `flags` that are not in the table of settings. Without the
        flag `embedded`, a server is embedded if it has neither address nor certificate. Raises ValueError."""
        stated = {row.key for row in TABLE}
        values: dict[str, Any] = {
            "data_fs": home / "data", "result_fs": home / "results", **_values(cls, found),
            **{name: flag for name, flag in flags.items() if flag is not None and name not in stated},
        }
        values["embedded"] = bool(flags.get("embedded")) or not {"host", "tls_cert", "tls_self_signed"} & set(values)
        settings = cls(home=home, user=user_name(), said=found, limits=Limits(**_values(Limits, found)),
                       quotas=(Quotas if values["embedded"] else Quotas.for_a_team)(**_values(Quotas, found)),
                       oidc=OidcSettings(**_values(OidcSettings, found)), **values)
        if settings.oidc.issuer and not settings.oidc.client_id:
            raise ValueError("DLI_OIDC_ISSUER needs DLI_OIDC_CLIENT_ID")
        rows = dict(settings_of(cls))
        for name in ("cache_dir", "shared_cache_dir"):
            folder = getattr(settings, name)
            if folder is not None and _overlap(folder, settings.data_fs):
                raise found.wrong(rows[name],
                                  f"a folder that is not in DLI_DATA_FS ({settings.data_fs}), which all jobs can "
                                  "read, and that does not contain it")
        try:
            _ = settings.where
        except ValueError as problem:
            raise ValueError(f"{problem} (--database, DLI_DATABASE)") from None
        return settings


#: Every setting of the server; docs/operations.md is generated from this.
TABLE = (
    Setting("DLICMD_HOME", FILE, "folder with the state of the server", "see above", in_file=False),
    *(row for group in (Settings, Limits, Quotas, OidcSettings) for _, row in settings_of(group)),
    Setting("DLI_PASSWORD", TEXT, "password for `--logon`, an alternative to the token in `backend.json`", "none",
            in_file=False, secret=True),
    Setting("DLI_USER_PASSWORD", TEXT, "password for `local-backend user add` and `passwd`", "the command asks",
            in_file=False, secret=True),
    Setting("DLI_CONDA_HOME", FILE,
            "conda installation with the environments that `--conda-env-name` names; the server also looks in its own "
            "conda installation and in the usual places, such as `~/miniconda3`", "none", in_file=False),
)


def _values(group: type[Any], found: GivenSettings) -> dict[str, Any]:
    """Return field → value for the settings of a dataclass that have a value. Raises ValueError."""
    values = {name: found.value(row) for name, row in settings_of(group)}
    return {name: value for name, value in values.items() if value is not None}


def _overlap(one: Path, other: Path) -> bool:
    """Return whether two folders are the same, or one is inside the other."""
    real, other_real = one.resolve(), other.resolve()
    return real.is_relative_to(other_real) or other_real.is_relative_to(real)


def user_name() -> str:
    """Return the name of the user that this process runs as, in a form that paths can contain."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid{os.getuid()}"
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "user"
