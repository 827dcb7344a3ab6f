"""One server on one DLICMD_HOME: lock, leftovers, database, supervisor, socket, and `backend.json` for its clients."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract import home as home_contract
from local_backend import interpreter, logs, own_process
from local_backend.data.errors import DataError
from local_backend.errors import ServingError
from local_backend.files import read_json, write_json
from local_backend.runtime import bundles
from local_backend.services.health import Finding
from local_backend.serving import isolation, served
from local_backend.serving.connections import raise_file_limit
from local_backend.serving.home_database import opened
from local_backend.serving.web_server import make_server
from local_backend.settings import Settings
from local_backend.store import execs, holdings
from local_backend.store.database import Database, DatabaseError
from local_backend.submit.folders import sweep
from local_backend.tracing import traced
from local_backend.vault import VaultError

if TYPE_CHECKING:
    from local_backend.serving.self_signed import SelfSigned

log = logging.getLogger("local_backend.serving.server")

#: Variables of the shell that started the server; no job inherits them.
_SECRETS = ("DLI_USER_PASSWORD", "DLICMD_PASSWORD", "DLICMD_TOKEN", "DLICMD_OIDC_TOKEN", "DLI_DATABASE", "PGPASSWORD",
            "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Print one line with the address when the server is ready. Raises ServerError."""
    check_network(settings)
    make_home(settings)
    with locked(settings) as lock, logs.written_to(
        settings.paths.log, settings.log_format, settings.log_level, settings.log_bytes
    ):
        log.info("starting, process %d, home %s", os.getpid(), settings.home)
        own_process.hide()
        try:
            if settings.isolates_jobs:
                isolation.check(settings)
            with traced():
                _serve(settings, lock, _self_signed(settings))
        except ServingError as problem:
            log.error("%s", problem)
            raise
        log.info("stopped")


def check_network(settings: Settings) -> None:
    """Raise ServerError for settings that would send tokens in clear over a network, for settings that contradict each
    other, and for a certificate without its key."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ServingError("--tls-cert and --tls-key must be given together")
    if settings.tls_cert is not None and settings.tls_self_signed:
        raise ServingError("--tls-self-signed makes its own certificate; remove --tls-cert and --tls-key")
    if settings.inference_host is not None and not _is_loopback(settings.inference_host) and not settings.speaks_tls:
        raise ServingError(
            f"DLI_INFERENCE_HOST {settings.inference_host} is reachable from other machines, so TLS is required; add "
            "--tls-cert FILE --tls-key FILE, or --tls-self-signed"
        )
    loopback = _is_loopback(settings.host)
    if settings.embedded and not loopback:
        raise ServingError(f"--embedded listens only on the loopback address, not on {settings.host}")
    if not loopback and not settings.speaks_tls:
        raise ServingError(
            f"--host {settings.host} is reachable from other machines, so TLS is required; add --tls-cert FILE "
            "--tls-key FILE, or --tls-self-signed"
        )


def _self_signed(settings: Settings) -> SelfSigned | None:
    """Make the server's own certificate and key if needed, and return their files. Return None if the settings name
    others, or none. Raises ServerError."""
    if not settings.tls_self_signed:
        return None
    from local_backend.serving.self_signed import SelfSigned, names_of

    made = SelfSigned(settings.paths.tls, *names_of(settings.host, settings.allowed_hosts))
    try:
        made.make()
    except OSError as problem:
        raise ServingError(f"--tls-self-signed: {problem.filename}: {problem.strerror}") from None
    return made


def make_home(settings: Settings) -> None:
    """Make the directories that the server needs. Raises ServerError."""
    paths = settings.paths
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.home.chmod(0o700)
        for folder in (paths.jobs, paths.bundles, paths.incoming, paths.staging, paths.volumes, paths.forwarding,
                       paths.users):
            folder.mkdir(mode=0o700, exist_ok=True)
        settings.result_fs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if settings.data_fs.is_relative_to(settings.home):
            settings.data_fs.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise _unusable(settings, problem) from None


@contextlib.contextmanager
def locked(settings: Settings) -> Iterator[int]:
    """Hold the lock of the home within the block; yield its descriptor. The lock ends with this process, even if the
    process is killed. Raises ServerError."""
    try:
        fd = os.open(settings.paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise _unusable(settings, problem) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ServingError(
            f"another server is running on {settings.home}; to show it: local-backend status; to stop it: "
            "local-backend stop"
        ) from None
    try:
        # Files of a killed server say nothing about this server.
        for name in (home_contract.BACKEND_FILE, f".{home_contract.BACKEND_FILE}.*.tmp"):
            for left in settings.home.glob(name):
                left.unlink(missing_ok=True)
        os.truncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        yield fd
    except OSError as problem:
        raise _unusable(settings, problem) from None
    finally:
        os.close(fd)


def holds(settings: Settings, lock: int) -> bool:
    """Return whether the lock is still the lock of the home. After the home was removed or replaced, it is not: this
    server has lost its state, and must not touch the state of another server."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(settings.paths.lock))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # a faulty disk may recover


def holder(lock: Path) -> int | None:
    """Return the process id of the server that runs on the home with this lock; None if none runs."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.read(fd, 20)
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None


def _serve(settings: Settings, lock: int, own_tls: SelfSigned | None) -> None:
    database = open_database(settings)
    try:
        with _listening(settings) as sock:
            interpreter.calm()
            _run(settings, database, sock, lock, own_tls)
    except OSError as problem:
        raise _unusable(settings, problem) from None
    finally:
        database.close()


def open_database(settings: Settings) -> Database:
    """Open the database. Remove what an interrupted server left, and history that is too old. Raises ServerError."""
    paths = settings.paths
    if paths.restoring.exists():
        raise ServingError(f"a restore of {settings.home} was interrupted; run the restore again with --force")
    try:
        database = opened(settings)
    except DatabaseError as problem:
        raise ServingError(str(problem)) from None
    except OSError as problem:
        raise _unusable(settings, problem) from None
    try:
        known, named, last, damaged = database.read(
            lambda c: (execs.all_ids(c), execs.all_bundles(c), execs.last_number(c), execs.damaged(c))
        )
    except (SQLAlchemyError, UnicodeDecodeError) as problem:  # the latter for damaged text
        database.close()
        raise ServingError(f"cannot read {database.name}: {getattr(problem, 'orig', None) or type(problem)}") from None
    if damaged is not None:
        database.close()
        raise ServingError(f"{database.name} is damaged at {damaged}; restore a backup of it or move it away")
    unknown = [name for name in os.listdir(paths.jobs) if execs.is_exec_id(name) and _number(name) > last]
    if unknown:
        database.close()
        raise ServingError(
            f"{database.name} does not contain {unknown[0]}, but its files are in {paths.jobs}. The database was "
            f"lost, or replaced by an older one. Restore a backup of it, or move {paths.jobs} away"
        )
    try:
        for orphan in sweep(paths, known, settings.user):
            log.info("removed the unfinished submission %s", orphan)
        bundles.sweep(paths, named)
        database.write(lambda c: holdings.prune(c, time.time()))
    except SQLAlchemyError as problem:
        log.warning("old history was not deleted: %s", getattr(problem, "orig", None) or type(problem))
    except OSError as problem:
        database.close()
        raise _unusable(settings, problem) from None
    return database


def _number(exec_id: str) -> int:
    return int(exec_id.rpartition("-")[2])


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """Yield a listening socket. Port 0 takes the port of the last server, so that open pages go on, or else a free
    port. Raises ServerError."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ServingError(f"--host {settings.host}: this machine has no such address") from None
    sock = None
    if not settings.port:
        with contextlib.suppress(OSError):
            sock = _bound(found[0], served.last_port(settings.paths.served))
    try:
        sock = sock or _bound(found[0], settings.port)
    except OSError as problem:
        raise _no_port(settings, problem) from None
    with sock:
        yield sock


def _bound(found: tuple[Any, ...], port: int) -> socket.socket:
    """Return a socket that listens on a port of an address that getaddrinfo has found. Raises OSError."""
    family, kind, protocol, _, address = found
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address[0], port, *address[2:]))
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


def _no_port(settings: Settings, problem: OSError) -> ServingError:
    where = f"{settings.host} port {settings.port}"
    if problem.errno == errno.EADDRINUSE:
        return ServingError(f"{where} is in use by another program; choose another --port, or 0 for a free port")
    if problem.errno == errno.EACCES:
        return ServingError(f"this user may not listen on {where}; choose a --port above 1023, or 0 for a free port")
    return ServingError(f"cannot listen on {where}: {problem.strerror}")


def _run(
    settings: Settings, database: Database, sock: socket.socket, lock: int, own_tls: SelfSigned | None
) -> None:
    """Start the supervisor, and answer calls until a signal arrives or the home is gone. Raises ServerError when the
    home is gone, or when the supervisor or the services cannot be made."""
    from local_backend.api.app import create_app
    from local_backend.console.site import Console
    from local_backend.runtime.local_launcher import LocalLauncher
    from local_backend.runtime.supervisor import Supervisor
    from local_backend.services.services import make_services

    raise_file_limit()
    token = secrets.token_urlsafe(32)
    # Remove this password and the other secrets from the environment, so that no job inherits them.
    password, *_ = [own_process.take(name) for name in ("DLI_PASSWORD", *_SECRETS)]
    try:
        group = _control_group(settings)
        supervisor = Supervisor(settings, database, LocalLauncher(settings, group))
        services = make_services(settings, database, supervisor, token, password, control_group=group,
                                 examine=partial(_findings, settings, database))
    except (DataError, VaultError) as problem:
        raise ServingError(str(problem)) from None
    server = make_server(create_app(services, Console()), settings, own_tls)
    server.may_go_on = partial(holds, settings, lock)
    announced = Announcement(settings, sock, token, own_tls)
    server.mend = announced.mend
    supervisor.start()
    services.forwarding.start()
    try:
        services.housekeeper.start()
        services.controller.start()
        services.model_controller.start()
        with server.heeding_signals(), _announced(settings, announced, lock, own_tls):
            server.run(sockets=[sock])
    finally:
        services.model_controller.close(end_gateway=settings.die_with_server)
        services.controller.close()
        services.algorithms.close()
        services.housekeeper.close()
        services.forwarding.close()
        supervisor.close()
        services.logons.close()
        services.base.audit.close()
        services.base.audit.close()
    if not server.may_go_on():
        raise ServingError(f"{settings.home} was removed or replaced while the server was running; its running jobs "
                          "stop on their own")


def _findings(settings: Settings, database: Database) -> Iterator[Finding]:
    """Yield what the checks of `local-backend doctor` find on a running server."""
    from local_backend.serving.doctor import Patient, examine

    patient = Patient(settings, os.getpid(), lambda: None)
    patient.database = database
    yield from examine(patient)


def _control_group(settings: Settings) -> Path | None:
    """Return the control group for jobs and search algorithms that is delegated to this process. Without one, they run
    without its limits."""
    from local_backend.runtime import cgroup

    if not settings.isolates_jobs:
        return None
    try:
        found = cgroup.take()
    except OSError as problem:
        log.info("no control group limits the jobs: %s", problem)
        return None
    log.info("the control group %s limits the jobs", found)
    return found


class Announcement:
    """The file backend.json, by which clients find this server."""

    def __init__(self, settings: Settings, sock: socket.socket, token: str, own_tls: SelfSigned | None) -> None:
        self.url = url_of(settings, sock)
        self.path = settings.home / home_contract.BACKEND_FILE
        self._content: dict[str, object] = {
            home_contract.URL: self.url, home_contract.PID: os.getpid(), home_contract.TOKEN: token,
            home_contract.SLOTS: settings.slots,
        }
        if settings.speaks_tls:
            self._content[home_contract.CERTIFICATE] = str(own_tls.authority if own_tls else settings.tls_cert)
        self._seen: tuple[int, ...] | None = None

    def write(self) -> None:
        """Write the file. Raises OSError."""
        write_json(self.path, self._content)
        self._seen = self._identity()

    def mend(self) -> None:
        """Write the file again if it was removed or damaged. Does nothing before the first `write`."""
        if self._seen is None or (found := self._identity()) == self._seen:
            return
        if found is not None and self._is_usable():
            self._seen = found
            return
        try:
            self.write()
        except OSError:
            return  # the disk is full: try again at the next call
        log.warning("%s was removed or damaged; it is written again", self.path)

    def _is_usable(self) -> bool:
        """Return whether the file has the token of this server. The address may be that of a proxy."""
        content = read_json(self.path)
        return isinstance(content, dict) and all(
            content.get(key) == self._content[key] for key in (home_contract.PID, home_contract.TOKEN)
        ) and isinstance(content.get(home_contract.URL), str)

    def _identity(self) -> tuple[int, ...] | None:
        try:
            found = self.path.lstat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def _announced(
    settings: Settings, announced: Announcement, lock: int, own_tls: SelfSigned | None
) -> Iterator[None]:
    """Write backend.json, print the address, and remove the file at the end of the block."""
    served.leave(settings, urlsplit(announced.url).port or 0)
    announced.write()
    log.info("serving at %s", announced.url)
    try:
        print(f"local-backend: serving at {announced.url}, state in {settings.home}", flush=True)
        if own_tls is not None:
            print("local-backend: to trust this server, clients use --ca-cert with a copy of "
                  f"{own_tls.authority}\nlocal-backend: the SHA-256 fingerprint of that file is "
                  f"{own_tls.fingerprint()}; dlicmd login shows it, too", flush=True)
        elif settings.tls_cert is not None:
            from local_backend.serving.self_signed import fingerprints  # with TLS alone

            for name, fingerprint in fingerprints(Path(settings.tls_cert)).items():
                print(f"local-backend: the SHA-256 fingerprint of the certificate of {name} is {fingerprint}",
                      flush=True)
    except OSError:
        log.info("standard output is closed")
    try:
        yield
    finally:
        if holds(settings, lock):  # else the file belongs to another server
            announced.path.unlink(missing_ok=True)


def url_of(settings: Settings, sock: socket.socket) -> str:
    """Return the URL of the server for a client on this machine."""
    host, port = sock.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    scheme = "https" if settings.speaks_tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unusable(settings: Settings, problem: OSError) -> ServingError:
    where = problem.filename or settings.home
    reason = problem.strerror or problem
    return ServingError(f"cannot use {where}: {reason}; set DLICMD_HOME to a folder that you can write to")
