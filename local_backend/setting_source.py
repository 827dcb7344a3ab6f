"""Sources of settings: `--set`, the environment, `DLICMD_HOME/server.yaml`; and the table of all settings."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dlicmd.contract.sizes import parse_size

#: The file in DLICMD_HOME. Its keys are the variables without DLI_, in lower case.
SETTINGS_FILE = "server.yaml"
_PREFIX = "DLI_"


class Setting(NamedTuple):
    """A row of the table."""

    variable: str
    what: str
    default: str
    #: Whether `server.yaml` may contain it.
    in_file: bool = True
    #: Whether its value is never shown.
    secret: bool = False

    @property
    def key(self) -> str:
        """Key of the setting in `server.yaml`."""
        return self.variable.removeprefix(_PREFIX).lower()


#: Every setting of the server; docs/operations.md is generated from this.
TABLE = (
    Setting("DLICMD_HOME", "state directory", "see above", in_file=False),
    Setting("DLI_HOST", "address to listen on (`--host`); any address other than the loopback needs TLS", "127.0.0.1"),
    Setting("DLI_PORT", "port to listen on (`--port`); 0 chooses a free port", "0"),
    Setting("DLI_TLS_CERT", "certificate (chain) in PEM form (`--tls-cert`)", "none"),
    Setting("DLI_TLS_KEY", "private key of the certificate (`--tls-key`)", "none"),
    Setting("DLI_DATABASE", "address of a [PostgreSQL](#postgresql) database (`--database`)", "a file of the home",
            secret=True),
    Setting("DLI_PASSWORD",
            "password for `--logon`, an alternative to the token in `backend.json`", "none", in_file=False,
            secret=True),
    Setting("DLI_USER_PASSWORD", "password for `local-backend user add` and `passwd`", "the command asks",
            in_file=False, secret=True),
    Setting("DLI_TOKEN_SECONDS", "lifetime of a token made by `--logon`", "43200"),
    Setting("DLI_ALLOWED_HOSTS",
            "additional host names, separated by commas, that clients may use for this server", "none",
            in_file=False),
    Setting("DLI_CONNECTIONS", "YAML file with [connections](connections.md) (`--connections`)", "none"),
    Setting("DLI_DATA_FS", "base directory of relative `data_path` values", "`DLICMD_HOME/data`"),
    Setting("DLI_VOLUMES",
            "directory where programs find [storage volumes](data-sources.md#storage-volumes); WMLA's was `/mnts`",
            "`DLICMD_HOME/volumes`"),
    Setting("DLI_DATA_ROWS", "maximum rows of a [table](data-tables.md) in a data source", "no limit"),
    Setting("DLI_DATA_SECONDS", "maximum seconds to read such a table", "no limit"),
    Setting("DLI_RESULT_FS", "directory where jobs write their results", "`DLICMD_HOME/results`"),
    Setting("DLI_CACHE_DIR",
            "cache for [data from elsewhere](data-sources.md#data-from-elsewhere), which later jobs use again",
            "`DLICMD_HOME/cache`"),
    Setting("DLI_SHARED_CACHE_DIR", "the same cache for data sources with the target `shared`; never in `DLI_DATA_FS`",
            "a folder next to `DLI_DATA_FS`"),
    Setting("DLI_CACHE_BYTES",
            "maximum bytes of each cache; the data that was unused for the longest time is removed first",
            "100 GiB"),
    Setting("DLI_DATA_PATIENCE", "maximum seconds that a job waits for data while nothing arrives", "600"),
    Setting("DLI_SLOTS", "number of slots, instead of counting GPUs or cores (`--slots`)", "counted"),
    Setting("DLI_NODE_LABELS",
            "`label=value,label=value` for node selectors, in addition to the labels that every node has", "none"),
    Setting("DLI_HEALTH_SECONDS", "seconds between 2 checks of the GPUs", "10"),
    Setting("DLI_LEAVE_GRACE",
            "maximum seconds for a worker to leave a slot that the scheduler took from its job", "60"),
    Setting("DLI_STOP_GRACE", "seconds between SIGTERM and SIGKILL when a job is stopped", "10"),
    Setting("DLI_NURSERY_IDLE", "seconds after which the warm process for fast starts frees its memory", "600"),
    Setting("DLI_LOG_FORMAT", "format of [the log](#the-log): `text` or `json` (`--log-format`)", "text"),
    Setting("DLI_LOG_LEVEL", "lowest level that is logged (`--log-level`)", "info"),
    Setting("DLI_LOG_BYTES", "bytes after which a new log file begins", "10 MiB"),
    Setting("DLI_OPEN_METRICS", "`true`: `/metrics` needs no token (`--open-metrics`)", "false"),
    Setting("DLI_READY_FREE_BYTES", "minimum free bytes for `/readyz`", "256 MiB"),
    Setting("DLI_MAX_UPLOAD_BYTES", "maximum bytes of an upload", "20 GiB"),
    Setting("DLI_MAX_UNPACKED_BYTES", "maximum bytes of the unpacked upload", "50 GiB"),
    Setting("DLI_MAX_UNPACKED_FILES", "maximum files in an upload", "200,000"),
    Setting("DLI_MAX_UNPACK_RATIO", "maximum unpacked bytes for each byte of the archive", "200"),
    Setting("DLI_MAX_UNPACK_SECONDS", "maximum seconds to unpack an upload", "600"),
    Setting("DLI_MAX_UNPACK_MEMORY", "maximum memory to unpack an upload", "512 MiB"),
    Setting("DLI_USER_ACTIVE_EXECS", "maximum pending and running execs of one user", "no limit"),
    Setting("DLI_USER_STORED_EXECS", "maximum execs of one user, including pending, running and finished execs",
            "no limit"),
    Setting("DLI_USER_STORED_BYTES", "maximum bytes of the execs of one user: programs, results and logs", "no limit"),
    Setting("DLI_MIN_FREE_BYTES",
            "minimum free bytes on the disks of home and results; below it, no submission is accepted", "64 MiB"),
    Setting("DLI_KEEP_DAYS", "days after which a finished exec is removed", "kept"),
    Setting("DLI_KEEP_BYTES", "total bytes of all execs; above it, the oldest finished execs are removed", "no limit"),
)
BY_KEY = {setting.key: setting for setting in TABLE if setting.in_file}
#: Address and TLS of a server for several users. An embedded server ignores them in environment and file.
_ADDRESS = ("DLI_HOST", "DLI_PORT", "DLI_TLS_CERT", "DLI_TLS_KEY")


@dataclass(frozen=True)
class Given:
    """Values from flags, environment and file: variable → text, and variable → its source. A hidden secret has a source
    and no text."""

    values: Mapping[str, str]
    sources: Mapping[str, str]

    def text(self, variable: str) -> str | None:
        """Return the value; None if it is missing or empty."""
        return self.values.get(variable) or None

    def wrong(self, variable: str, must: str) -> ValueError:
        """Return the error for a bad value, which names its source. The error shows no secret."""
        shown = "" if variable in _SECRET else f", not '{self.values.get(variable, '')[:80]}'"
        return ValueError(f"{self.sources.get(variable, variable)} must be {must}{shown}")

    def number(self, variable: str, least: int, most: int) -> int | None:
        """Return a whole number; None if it is missing. Raises ValueError."""
        text = self.text(variable)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise self.wrong(variable, f"a whole number between {least} and {most}")
        return int(text)

    def choice(self, variable: str, words: Sequence[str]) -> str | None:
        """Return one of these words; None if the value is missing. Raises ValueError."""
        text = (self.text(variable) or "").lower()
        if text and text not in words:
            raise self.wrong(variable, f"one of {', '.join(words)}")
        return text or None

    def switch(self, variable: str) -> bool | None:
        """Return True or False; None if the value is missing. Raises ValueError."""
        text = (self.text(variable) or "").lower()
        if text not in ("", "true", "yes", "1", "false", "no", "0"):
            raise self.wrong(variable, "true or false")
        return text in ("true", "yes", "1") if text else None

    def size(self, variable: str, least: int = 1) -> int | None:
        """Return a number of bytes, written as a whole number, or with a unit, such as 20G. Raises ValueError."""
        text = self.text(variable)
        if text is None or re.fullmatch(r"[0-9]{1,18}", text):
            return self.number(variable, least, 2**60)
        try:
            return parse_size(text)
        except ValueError:
            raise self.wrong(variable, "a number of bytes, optionally with K, M, G or T, for example 20G") from None

    def path(self, variable: str) -> Path | None:
        """Return an absolute path; None if the value is missing."""
        text = self.text(variable)
        return Path(text).expanduser().absolute() if text else None


_SECRET = {setting.variable for setting in TABLE if setting.secret}


def given(home: Path, more: Sequence[str] = (), flags: Mapping[str, object] | None = None) -> Given:
    """Return the values of the settings, and their sources. For each setting, the first source that has it counts: the
    `flags` of `serve` that are not None; `more`, the words of `--set`, of the form `key=value` with the keys of the
    file; the environment; the file.

    With the flag `embedded`, the environment and the file cannot set an address or a certificate. Raises ValueError for
    a file that cannot be used, for a bad word in `more`, and for an unknown key.
    """
    file = home / SETTINGS_FILE
    values = _read(file) if file.exists() else {}
    sources = dict.fromkeys(values, "")
    for variable in values:
        sources[variable] = f"{file}: {variable.removeprefix(_PREFIX).lower()}"
    for setting in TABLE:
        if os.environ.get(setting.variable):
            values[setting.variable], sources[setting.variable] = os.environ[setting.variable], setting.variable
    if flags and flags.get("embedded"):
        for variable in _ADDRESS:
            values.pop(variable, None)
    for word in more:
        key, equals, value = word.partition("=")
        if key in BY_KEY and BY_KEY[key].secret:
            raise ValueError(f"--set {key}: all users can read a command line; set it in {SETTINGS_FILE} or as "
                             f"{BY_KEY[key].variable}")
        if key in BY_KEY and not value:
            raise ValueError(f"--set {key}: " + ("no value after =" if equals else "=VALUE is missing"))
        if key not in BY_KEY:
            near = difflib.get_close_matches(key, [name for name, one in BY_KEY.items() if not one.secret], n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"--set needs KEY=VALUE with a key of {SETTINGS_FILE}; '{key[:80]}' is not a key{meant}")
        values[BY_KEY[key].variable], sources[BY_KEY[key].variable] = value, f"--set {key}"
    for key, said in (flags or {}).items():
        if key in BY_KEY and said is not None:
            text = "true" if said is True else str(said)
            values[BY_KEY[key].variable], sources[BY_KEY[key].variable] = text, "--" + key.replace("_", "-")
    return Given(values, {variable: sources[variable] for variable in values})


def _read(file: Path) -> dict[str, str]:
    from dlicmd.config.yaml_file import read
    from dlicmd.errors import UsageProblem

    try:
        found = read(file)
        entries = [] if found is None else found.entries("the settings")
        for key, place, _ in entries:
            if key not in BY_KEY:
                place.unknown("setting", key, BY_KEY)
        values = {BY_KEY[key].variable: value.text(key) for key, _, value in entries}
    except UsageProblem as problem:
        raise ValueError(str(problem)) from None
    if _SECRET & set(values) and file.stat().st_mode & 0o077:
        raise ValueError(f"{file} contains a secret and other users can read it; run chmod 600 {file}")
    return values
