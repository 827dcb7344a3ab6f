"""Checks a home, its server and this machine for problems. Changes nothing.

Every check is a function from a `Patient` to findings. A check that fails is a finding, too.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract import home as home_contract
from dlicmd.contract.sizes import show_size
from local_backend.data import registry
from local_backend.files import read_json
from local_backend.runtime import cgroup
from local_backend.runtime.condition import last_backup
from local_backend.services.health import OK, PROBLEM, WARNING, Finding
from local_backend.serving import isolation
from local_backend.serving.lost_secrets import lost as lost_secrets
from local_backend.setting_source import SETTINGS_FILE
from local_backend.settings import Settings
from local_backend.signing import SigningKeys
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.errors import DatabaseError
from local_backend.store.execs import Brief
from local_backend.store.migrations.upgrade import VERSIONS, version
from local_backend.store.sqlite import wal_is_safe
from local_backend.vault import Vault, VaultError

#: Free bytes below which a disk gets a warning.
_ROOM = 2 * 2**30
_TORCH_PATIENCE = 300.0
#: Seconds by which clocks may differ without a warning.
_DRIFT = 5.0
_NAMED = 5
_DAY = 86400.0
#: Days after which the key of secrets, and the last backup of a server for a team, get a warning.
_OLD_KEY, _OLD_BACKUP = 365.0, 7.0
#: Files that other users may read: the settings, which the server refuses if they are readable and contain a secret,
#: and the CA certificate, which clients trust.
_PUBLIC = (SETTINGS_FILE, "ca.pem")
#: Remaining validity below which a certificate gets a warning. The server renews its own certificates earlier.
_SOON = timedelta(days=21)


@dataclass
class Patient:
    """The objects to check. `server` is the process id of the running server, None if no server runs. `call` asks the
    server for its status, and raises OSError."""

    settings: Settings
    server: int | None
    call: Callable[[], object]

    @cached_property
    def database(self) -> Database:
        """The database, for reading. Raises DatabaseError if it does not exist yet."""
        where = self.settings.where
        if isinstance(where, Path) and not where.exists():
            raise DatabaseError(f"{where} does not exist")
        return Database(where)

    @cached_property
    def rows(self) -> dict[str, Brief]:
        """All execs, including execs that are being deleted. Raises the errors of the database."""
        return {row.id: row for row in self.database.read(execs.briefs)}


def examine(patient: Patient) -> Iterator[Finding]:
    """Yield all findings, each as soon as its check is done: some checks take seconds."""
    for check in (_home, _keys, _tls, _isolation, _forwarding, _server, _database, _backups, _secrets, _rows, _folders,
                  _disk, _kinds, _devices, _torch, _clock):
        name = check.__name__.strip("_")
        try:
            yield from check(patient)
        except (OSError, SQLAlchemyError, DatabaseError, ValueError) as problem:
            text = " ".join(str(getattr(problem, "orig", None) or problem).split())
            yield Finding(name, PROBLEM, f"check failed: {text}", "fix the other findings first")


def _home(patient: Patient) -> Iterator[Finding]:
    paths = patient.settings.paths
    if not paths.home.is_dir():
        yield Finding("home", WARNING, f"{paths.home} does not exist", "start the server once: local-backend serve")
        return
    bad = 0
    own = (paths.home, paths.keys, paths.tls, paths.forwarding, paths.before_upgrade, paths.vault.parent)
    folders = [*own, paths.jobs, paths.incoming, paths.volumes, paths.users, patient.settings.result_fs]
    files = [path for folder in own if folder.is_dir() for path in folder.iterdir() if not path.is_dir()]
    for path in [*folders, *files]:
        wanted = 0o700 if path in folders else 0o644 if path.name in _PUBLIC else 0o600
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(found.st_mode):
            continue
        if found.st_uid != os.getuid():
            bad += 1
            yield Finding("home", PROBLEM, f"{path} belongs to user {found.st_uid}, but you are user {os.getuid()}",
                          f"run this as the user of the server, or: chown {os.getuid()} {path}")
        elif stat.S_IMODE(found.st_mode) & ~wanted:
            bad += 1
            yield Finding("home", PROBLEM, f"other users have access to {path} (mode {stat.S_IMODE(found.st_mode):o})",
                          f"chmod {wanted:o} {path}")
    if paths.restoring.exists():
        bad += 1
        yield Finding("home", PROBLEM, "a restore was interrupted", "run it again: local-backend restore FILE --force")
    if not bad:
        yield Finding("home", OK, f"only you have access to {paths.home}")


def _keys(patient: Patient) -> Iterator[Finding]:
    """Check the keys that sign the tokens of logons."""
    troubles = SigningKeys(patient.settings.paths.keys, 0).troubles()
    for problem in troubles:
        yield Finding("keys", PROBLEM, f"{problem.filename}: {problem.strerror}",
                      "no user can log on until the file is readable or removed; after removal, the tokens that it "
                      "signed are invalid")
    if not troubles:
        yield Finding("keys", OK, "all token signing keys are usable")
    vault = patient.settings.paths.vault
    age = (time.time() - vault.stat().st_mtime) / _DAY if vault.exists() else 0.0
    if age > _OLD_KEY:
        yield Finding("keys", WARNING, f"the key in {vault} is {age:.0f} days old",
                      "stop the server and run local-backend renew-key; keep the old key with the older backups")


def _backups(patient: Patient) -> Iterator[Finding]:
    """Check how old the last backup is. A server for its own user alone may do without."""
    settings = patient.settings
    if settings.database is not None:
        yield Finding("backups", OK, "the database is a PostgreSQL database: check the age of its backups yourself")
        return
    made = last_backup(settings)
    age = None if made is None else (time.time() - made) / _DAY
    what = "no backup was made" if age is None else f"the last backup was made {age:.1f} days ago"
    old = not settings.embedded and (age is None or age > _OLD_BACKUP)
    yield Finding("backups", WARNING if old else OK, what, "local-backend backup FILE, daily" if old else "")


def _tls(patient: Patient) -> Iterator[Finding]:
    """Check the certificates, how long they are valid, and the key."""
    settings = patient.settings
    own = settings.tls_cert is None
    used = [settings.paths.tls / name for name in ("ca.pem", "server.pem")] if own else [settings.tls_cert]
    cure = "restart the server, which renews it" if own else "renew it, then restart the server"
    for path in used:
        assert path is not None
        if own and not path.exists():
            continue
        try:
            end = _end_of(path)
        except (OSError, ValueError) as problem:
            yield Finding("tls", PROBLEM, f"{path} is not a readable certificate: {problem}",
                          "remove it; the server then makes a new one" if own
                          else "name another certificate with --tls-cert")
            continue
        left = end - datetime.now(timezone.utc)
        level = PROBLEM if left < timedelta() else WARNING if left < _SOON else OK
        if own and patient.server is None:
            level = OK  # a server that needs it renews it at its start
        yield Finding("tls", level, f"{path} {'expired on' if left < timedelta() else 'expires on'} {end:%Y-%m-%d}",
                      "" if level == OK else cure)
    if settings.tls_cert is not None and settings.tls_key is not None:
        yield from _tls_key(settings.tls_cert, settings.tls_key)
    elif not settings.speaks_tls:
        yield Finding("tls", OK, "the server does not use TLS")


def _tls_key(certificate: Path, key: Path) -> Iterator[Finding]:
    """Check the access to a key, and whether it belongs to the certificate."""
    if not os.access(key, os.R_OK):
        yield Finding("tls", PROBLEM, f"cannot read {key}", "set --tls-key to a key that this user can read")
        return
    if key.stat().st_mode & 0o007:
        yield Finding("tls", PROBLEM, f"all users have access to {key}", f"chmod o= {key}")
    try:
        # Without this argument, OpenSSL asks for the password of an encrypted key on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError):
        yield Finding("tls", PROBLEM, f"{key} is encrypted, or is not the key of {certificate}",
                      "set --tls-cert to the certificate and --tls-key to its key, without a password")


def _end_of(path: Path) -> datetime:
    """Return the time at which the first certificate of a file expires. Raises OSError, ValueError."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc


def _isolation(patient: Patient) -> Iterator[Finding]:
    """Check whether this machine can isolate the jobs of a server for a team."""
    settings = patient.settings
    if settings.embedded:
        yield Finding("isolation", OK, "the server is for 1 user: jobs run under the account of the server")
    elif settings.jobs_share_server_account:
        yield Finding("isolation", WARNING, "jobs are not isolated: each job can read all files of the server",
                      "start the server without --jobs-share-server-account, unless all users may read these files")
    elif (why := isolation.trouble(settings)) is not None:
        yield Finding("isolation", PROBLEM, f"jobs cannot be isolated: {why}", isolation.CURE)
    else:
        yield Finding("isolation", OK, f"jobs can be isolated{_limits(patient.server)}")


def _limits(server: int | None) -> str:
    """Return what the control groups of a running server limit."""
    if server is None:
        return ""
    try:
        found = cgroup.limits(Path(f"/proc/{server}"))
    except OSError as problem:
        return f"; no control group limits them: {problem}"
    return f"; control groups limit their {' and '.join(found)}" if found else (
        "; no control group limits them, because none is delegated to the server (see its log)")


def _forwarding(patient: Patient) -> Iterator[Finding]:
    """Check the notes about metrics that the server still has to forward."""
    folder = patient.settings.paths.forwarding
    notes = sorted(folder.glob("*.json")) if folder.is_dir() else []
    damaged = [path.name for path in notes if not isinstance(read_json(path), dict)]
    if damaged:
        yield Finding("forwarding", WARNING,
                      f"{_named(damaged)} in {folder}: the note about metrics to forward is damaged",
                      "remove it; the server then forwards no more metrics of that exec")
    else:
        yield Finding("forwarding", OK, f"{len(notes)} notes about metrics to forward")


def _server(patient: Patient) -> Iterator[Finding]:
    if patient.server is None:
        yield Finding("server", OK, "no server runs")
        return
    home = patient.settings.home
    try:
        patient.call()
    except (OSError, ValueError, KeyError) as problem:
        yield Finding("server", PROBLEM, f"process {patient.server} holds {home} but does not answer: {problem}",
                      f"read {patient.settings.paths.log}; then: kill {patient.server} (jobs continue)")
        return
    yield Finding("server", OK, f"process {patient.server} answers")


def _database(patient: Patient) -> Iterator[Finding]:
    where = patient.settings.where
    if isinstance(where, Path) and not where.exists():
        yield Finding("database", OK, "no database yet")
        return
    database = patient.database
    damaged = database.damage()
    found = database.read(version) if damaged is None else None
    restore = "stop the server and restore a backup: local-backend restore FILE --force"
    if damaged is None and found in VERSIONS:
        damaged = database.read(execs.damaged) if found == VERSIONS[-1] else None
    if damaged is not None:
        yield Finding("database", PROBLEM, f"{database.name} is damaged: {damaged}", restore)
    elif found not in (None, *VERSIONS):
        yield Finding("database", PROBLEM, f"{database.name} has schema {found}, which was written by a newer version",
                      "use the newer version")
    elif found != VERSIONS[-1]:
        yield Finding("database", WARNING,
                      f"{database.name} has schema {found or 'none'}; this version uses {VERSIONS[-1]}",
                      "the next start of the server saves it, then migrates it")
    else:
        yield Finding("database", OK, f"{database.name} is intact, schema {found}")
    if isinstance(where, Path) and not wal_is_safe(sqlite3.sqlite_version_info):
        yield Finding("database", OK,
                      f"SQLite {sqlite3.sqlite_version} may damage write-ahead logs, so the database uses the slower "
                      "rollback journal")


def _secrets(patient: Patient) -> Iterator[Finding]:
    """Check the sealed values, and the key."""
    paths, where = patient.settings.paths, patient.settings.where
    try:
        Vault(paths.vault).check()
    except VaultError as problem:
        yield Finding("secrets", PROBLEM, str(problem), "until then, jobs and connections that need their secrets wait")
        return
    there = not isinstance(where, Path) or where.exists()
    if not there or patient.database.read(version) != VERSIONS[-1]:
        return
    lost = patient.database.read(lambda connection: list(lost_secrets(connection, paths)))
    if lost:
        yield Finding("secrets", PROBLEM, f"{_named(lost)}: sealed with a key that is not in {paths.vault}",
                      "restore the key from a copy of that file, or enter these secrets again")
    else:
        yield Finding("secrets", OK, "all encrypted values can be decrypted")


def _rows(patient: Patient) -> Iterator[Finding]:
    """Find execs without their files."""
    settings = patient.settings
    if isinstance(settings.where, Path) and not settings.where.exists():
        return
    lost = [row for row in patient.rows.values() if not row.deleted
            and not settings.paths.job(row.id, row.creator).state.is_dir()]
    if lost:
        yield Finding("rows", PROBLEM, f"{_named(row.id for row in lost)}: files missing in {settings.paths.jobs}",
                      "restore a backup, or delete these execs (dlicmd --exec-delete ID)")
    states = Counter(row.state for row in patient.rows.values())
    yield Finding("rows", OK, ", ".join(f"{n} {name}" for name, n in states.items()) or "no execs")


def _folders(patient: Patient) -> Iterator[Finding]:
    """Find files without their execs."""
    settings, paths = patient.settings, patient.settings.paths
    if not paths.jobs.is_dir():
        return
    rows = patient.rows if not isinstance(settings.where, Path) or settings.where.exists() else {}
    jobs = [name for name in os.listdir(paths.jobs) if execs.is_exec_id(name) and name not in rows]
    if jobs and patient.server is None:
        yield Finding("folders", WARNING, f"{_named(jobs)} in {paths.jobs}: no exec has this id",
                      "start the server: it removes the rest of an interrupted submission, or reports the problem")
    trees = [path for path in settings.result_fs.glob("*/batchworkdir/*")
             if execs.is_exec_id(path.name) and path.name not in rows and not (paths.jobs / path.name).is_dir()]
    if trees:
        yield Finding("folders", WARNING, f"{_named(map(str, trees))}: results without an exec on this server",
                      "remove them, unless another server uses the same DLI_RESULT_FS")
    kept = list(paths.home.glob("replaced-*"))
    if kept:
        yield Finding("folders", WARNING, f"{_named(map(str, kept))}: files that a restore replaced", "remove it")
    if not (jobs or trees or kept):
        yield Finding("folders", OK, "every folder belongs to an exec")


def _disk(patient: Patient) -> Iterator[Finding]:
    settings = patient.settings
    for path in dict.fromkeys((settings.home, settings.result_fs)):
        if not path.is_dir():
            continue
        free = shutil.disk_usage(path).free
        nodes = os.statvfs(path)
        if free < _ROOM or (nodes.f_files and nodes.f_favail < nodes.f_files // 100):
            yield Finding("disk", PROBLEM if free < _ROOM // 20 else WARNING,
                          f"{path} has {show_size(free)} and {nodes.f_favail} files free",
                          "delete execs (dlicmd --exec-delete ID), or put DLI_RESULT_FS on a larger disk")
        else:
            yield Finding("disk", OK, f"{path} has {show_size(free)} free")


def _kinds(patient: Patient) -> Iterator[Finding]:
    """Check the kinds of connections that other packages add."""
    for problem in registry.unusable().values():
        yield Finding("kinds", PROBLEM, problem, registry.CURE)
    if not registry.unusable():
        yield Finding("kinds", OK, f"{len(registry.every())} kinds of connections can be used")


def _devices(patient: Patient) -> Iterator[Finding]:
    from local_backend.scheduler.slots import discover

    kinds = Counter(slot.kind for slot in discover(patient.settings.slots))
    text = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    if set(kinds) == {"cpu"} and Path("/dev/nvidiactl").exists() and patient.settings.slots is None:
        yield Finding("devices", WARNING, f"slots: {text}; an NVIDIA driver is installed, but NVML finds no GPU",
                      "check nvidia-smi and CUDA_VISIBLE_DEVICES")
    else:
        yield Finding("devices", OK, f"slots: {text}")


def _torch(_patient: Patient) -> Iterator[Finding]:
    """Check that torch can be imported, in a process of its own: a broken library may crash its process."""
    program = "import sys; del sys.path[0]; import torch; print(torch.__version__, torch.cuda.is_available())"
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_TORCH_PATIENCE,
                              check=False)
    except subprocess.TimeoutExpired:
        yield Finding("torch", PROBLEM, f"import torch takes longer than {_TORCH_PATIENCE:g} s",
                      "check whether the disk is slow")
        return
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield Finding("torch", PROBLEM, f"import torch fails: {said[:300]}",
                      f"install it for {sys.executable}: see https://pytorch.org/get-started")
        return
    found, cuda = done.stdout.split()[-2:]
    yield Finding("torch", OK, f"torch {found}, {'with' if cuda == 'True' else 'without'} CUDA; "
                               f"Python {platform.python_version()}, SQLAlchemy {sqlalchemy.__version__}")


def _clock(patient: Patient) -> Iterator[Finding]:
    """Warn if the newest recorded time is in the future: then the clock was set back."""
    now, moments = time.time(), [0.0]
    where = patient.settings.where
    if not isinstance(where, Path) or where.exists():
        moments += [when for row in patient.rows.values() for when in (row.create_time, row.start_time, row.end_time)
                    if when]
    backend = patient.settings.home / home_contract.BACKEND_FILE
    if backend.exists():
        moments.append(backend.stat().st_mtime)
    if max(moments) > now + _DRIFT:
        yield Finding("clock", WARNING, f"the clock is {max(moments) - now:.0f} s behind the latest recorded time",
                      "synchronize the clock with NTP; until then, times and the order of execs are wrong")
    else:
        yield Finding("clock", OK, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)))
    for folder in dict.fromkeys((patient.settings.home, patient.settings.result_fs)):
        if folder.is_dir() and abs(skew := _skew(folder)) > _DRIFT:
            yield Finding("clock", WARNING, f"the clock of the disk of {folder} differs by {skew:.0f} s from that "
                          "of this machine", "synchronize the clocks of the file server and of this machine")


def _skew(folder: Path) -> float:
    """Return by how many seconds the clock of a file system, perhaps that of a file server, is ahead. The file for
    this has no name. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as file:
        before = time.time()
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_mtime - before


def _named(names: Iterator[str] | list[str] | map[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
