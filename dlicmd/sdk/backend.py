"""The embedded local backend: find the running one, or start one in the background."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dlicmd.contract import home, wire
from dlicmd.sdk import hints, paths
from dlicmd.sdk.errors import BackendNotStarted, BackendSuspended, ConnectFailed, ConnectionLost, Unreachable
from dlicmd.sdk.messages import debug, info, warn
from dlicmd.sdk.transport import Answer, PlainTransport, Request

if TYPE_CHECKING:
    import ssl
    import subprocess

#: Names of this machine under which servers on the loopback are reached.
LOOPBACK = ("127.0.0.1", "localhost")
START_SECONDS = 60.0
_POLL = 0.05
#: Seconds for which a suspended backend may be about to continue.
_SUSPENDED = 3.0
#: Free bytes below which a disk counts as full.
_FULL = 2**16
UNAUTHORIZED = 401
#: Variables that name directories. Their values are made absolute, because the backend works in DLICMD_HOME.
_DIRECTORIES = ("DLI_DATA_FS", "DLI_RESULT_FS")


class Endpoint(NamedTuple):
    """The address of the local backend, the token that it requires, and the file of its certificate if it speaks
    TLS."""

    url: str
    pid: int
    token: str
    certificate: str | None = None
    #: The value of DLI_SLOTS in the backend's file: "None" if the backend counted its devices, "" if the file has no
    #: value.
    slots: str = ""

    def transport(self) -> PlainTransport:
        """Return a transport to the backend. Raises Unreachable when the certificate that its file names cannot be
        read."""
        tls = _tls(self.certificate) if self.certificate else None
        return PlainTransport(self.url, tls, mind=partial(_mind_suspension, self.pid))


class EmbeddedTransport:
    """A transport to the local backend that starts a backend if none runs, and finds a restarted backend again.

    Without `may_start`, a backend that does not run causes a ConnectFailed error.
    """

    is_private = True

    def __init__(self, may_start: bool = True) -> None:
        self._may_start = may_start
        #: The backend and the transport to it. Threads read and replace both in one step, so no lock is needed.
        self._link: tuple[Endpoint, PlainTransport] | None = None

    def send(self, request: Request) -> Answer:
        """See Transport. If a restarted backend refuses the old token, a request without a body is sent again with the
        new token."""
        link = self._linked()
        if _submits(request):
            _mind_slots(link[0])
        try:
            answer = self._once(link, request)
        except ConnectionLost:
            self._forget(link)
            raise
        if answer.status != UNAUTHORIZED or request.body is not None or find() == link[0]:
            return answer
        self._forget(link)
        return self._once(self._linked(), request)

    def close(self) -> None:
        """See Transport."""
        link, self._link = self._link, None
        if link is not None:
            link[1].close()

    def _once(self, link: tuple[Endpoint, PlainTransport], request: Request) -> Answer:
        try:
            return _send(link, request)
        except ConnectFailed:
            # The file outlived its backend. Another process may have its process id now.
            self._forget(link)
        return _send(self._started(), request)

    def _linked(self) -> tuple[Endpoint, PlainTransport]:
        """Return the backend that runs, and a transport to it. Start the backend if none runs."""
        link = self._link
        if link is not None:
            return link
        endpoint = running()
        return self._started() if endpoint is None else self._use(endpoint)

    def _started(self) -> tuple[Endpoint, PlainTransport]:
        if not self._may_start:
            raise ConnectFailed("the local backend is not running")
        return self._use(start())

    def _use(self, endpoint: Endpoint) -> tuple[Endpoint, PlainTransport]:
        self._link = link = endpoint, endpoint.transport()
        return link

    def _forget(self, link: tuple[Endpoint, PlainTransport]) -> None:
        """Look for the backend again with the next request. Other threads may still read answers of this transport, so
        it stays open."""
        if self._link is link:
            self._link = None


def _send(link: tuple[Endpoint, PlainTransport], request: Request) -> Answer:
    endpoint, transport = link
    return transport.send(request._replace(headers={**request.headers, "Authorization": f"Bearer {endpoint.token}"}))


def find() -> Endpoint | None:
    """Return the running backend that its file describes, or None. Only the process id is checked: no request is
    sent."""
    try:
        found = json.loads(paths.backend_file().read_bytes())
        certificate = found.get(home.CERTIFICATE)
        endpoint = Endpoint(
            str(found[home.URL]), int(found[home.PID]), str(found[home.TOKEN]), certificate and str(certificate),
            str(found[home.SLOTS]) if home.SLOTS in found else "",
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return endpoint if _is_alive(endpoint.pid) else None


def running() -> Endpoint | None:
    """Return the running backend, or None. If a server holds the lock of the home and its file is missing or damaged,
    wait until the server has written the file. Raises BackendSuspended and BackendNotStarted."""
    deadline = time.monotonic() + START_SECONDS
    while (endpoint := find()) is None and (pid := _holder()) is not None:
        _mind_suspension(pid)
        if time.monotonic() > deadline:
            raise BackendNotStarted(
                f"a server (process {pid}) runs on {home.home()}, but {paths.backend_file()} does not describe it; "
                "to end it: local-backend stop"
            )
        time.sleep(_POLL)
    return endpoint


def _holder() -> int | None:
    """Return the process that holds the lock of the home, None if it is free. The lock is tried only while the process
    lives that wrote its id: a try can make a server fail that is about to start."""
    try:
        fd = os.open(paths.backend_lock(), os.O_RDWR)
    except OSError:
        return None
    try:
        text = os.read(fd, 20)
        if not text.isdigit() or not _is_alive(int(text)):
            return None
        import fcntl  # not on Windows

        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(text)
        return None
    except OSError:
        return None
    finally:
        os.close(fd)


def _mind_suspension(pid: int) -> None:
    """Raise BackendSuspended if a process stays suspended for `_SUSPENDED` seconds. Return at once if it is not."""
    deadline = time.monotonic() + _SUSPENDED
    while _is_suspended(pid):
        if time.monotonic() > deadline:
            raise BackendSuspended(pid)
        time.sleep(_POLL)


def _is_suspended(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process. False on systems without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
    except OSError:
        return False


def is_own(where: str) -> bool:
    """Return whether HOST:PORT is the local backend of this user, which speaks plain http on the loopback.

    Only this user can write the file of the backend: so this is not a guess.
    """
    host, _, port = where.rpartition(":")
    found = find() if host in LOOPBACK else None
    return found is not None and found.url in {f"http://{name}:{port}" for name in LOOPBACK}


def staging() -> Path | None:
    """Return the folder through which the local backend takes over folders; None if this user is not its user, or if
    its file was copied from another home."""
    folder = paths.staging_folder()
    try:
        return folder if folder.stat().st_uid == os.geteuid() else None
    except FileNotFoundError:
        return folder if find() is None else None  # a backend that starts makes it
    except OSError:
        return None


def _submits(request: Request) -> bool:
    return request.method == "POST" and request.target.partition("?")[0].rstrip("/") == wire.EXECS


def _mind_slots(endpoint: Endpoint) -> None:
    """Warn if DLI_SLOTS differs from the running backend's value: only the start of a backend reads the variable."""
    wanted = os.environ.get("DLI_SLOTS", "")
    if wanted and endpoint.slots and wanted != endpoint.slots:
        has = "counted its own slots" if endpoint.slots == "None" else f"was started with {endpoint.slots}"
        warn(f"DLI_SLOTS={wanted} has no effect: the running local backend {has}; stop it with: local-backend stop")


def _tls(certificate: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only the certificate of this server. The host name is not checked, because the
    certificate may name another machine. Raises Unreachable when the file cannot be read."""
    import ssl  # for a backend that speaks TLS

    try:
        context = ssl.create_default_context(cafile=certificate)
    except OSError as problem:
        raise Unreachable(
            f"cannot read the TLS certificate {certificate} of the server of {home.home()} "
            f"({problem.strerror}); {hints.another_server()}"
        ) from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def start() -> Endpoint:
    """Return the endpoint of the backend. Start the backend, unless another client does so at this moment. Raises
    BackendNotStarted."""
    if sys.platform == "win32":
        raise BackendNotStarted(f"the local backend runs only on Linux and macOS; {hints.a_server()}")
    if not is_installed():
        raise BackendNotStarted(f"{hints.a_server()}: {hints.REMOTE_ALONE}")
    place = _made_home()
    try:
        with _one_starter(paths.start_lock()):
            endpoint = running()
            if endpoint is not None and _answers(endpoint):
                return endpoint
            _mind_team(place)
            if sys.stderr is not None and sys.stderr.isatty():
                info("starting the local backend ...")
            process = _launch(place)
            endpoint = _await_answer(process)
    except OSError as problem:
        where = f"the disk of {place}" if problem.errno == errno.ENOSPC else problem.filename or place
        raise BackendNotStarted(f"cannot start the local backend: {where}: {problem.strerror}") from None
    info(f"started the local backend at {endpoint.url} (state in {place})")
    return endpoint


def is_installed() -> bool:
    """Return whether the local backend is installed. The client file that servers hand out comes without it."""
    import importlib.util  # for a start of the backend alone

    return importlib.util.find_spec("local_backend") is not None


def _made_home() -> Path:
    """Create the folder of the backend's state and return it. Raises BackendNotStarted when that fails."""
    place = home.home()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        what = "Not a directory" if isinstance(problem, FileExistsError) else problem.strerror
        raise BackendNotStarted(f"DLICMD_HOME={place}: {what}; set DLICMD_HOME to a folder you can write to") from None
    return place


def _mind_team(place: Path) -> None:
    """Raise BackendNotStarted when the last server of this home served other users, too. An embedded server, which
    serves this user alone on the loopback, would take over its jobs and prevent its restart."""
    try:
        left = json.loads(paths.served_file().read_bytes())
        embedded, command = bool(left[home.EMBEDDED]), str(left[home.COMMAND])
    except (OSError, ValueError, TypeError, KeyError):
        return
    if not embedded:
        raise BackendNotStarted(
            f"the server for a team with the home {place} is not running; start its service, or run: {command} "
            "(only for yourself: local-backend serve --embedded, or another DLICMD_HOME)"
        )


@contextmanager
def _one_starter(lock: Path) -> Iterator[None]:
    """Hold `lock`, so that one of several clients that start at once starts the backend and the others find it."""
    import fcntl  # not on Windows

    deadline = time.monotonic() + START_SECONDS
    with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BackendNotStarted(
                        f"another dlicmd process is still starting the local backend; see {lock}"
                    ) from None
                time.sleep(_POLL)
        yield


def _launch(place: Path) -> subprocess.Popen[bytes]:
    import subprocess  # for a start of the backend alone

    absolute = {name: str(Path(os.environ[name]).expanduser().absolute())
                for name in _DIRECTORIES if os.environ.get(name)}
    environment = {**os.environ, **absolute, "DLICMD_HOME": str(place)}
    with open(os.open(paths.backend_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        debug(f"starting the local backend; it logs to {paths.backend_log()}")
        # The working directory is not on the import path: no Python file in it may shadow a backend module.
        program = "import sys; del sys.path[0]; from local_backend.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", program, "serve", "--embedded"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=place, env=environment, start_new_session=True,
        )


def _await_answer(process: subprocess.Popen[bytes]) -> Endpoint:
    """Wait until a backend answers, and return its endpoint. `process` was started here, but another backend may be
    first."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        endpoint = find()
        if endpoint is not None and _answers(endpoint):
            # The backend outlives this process. A return code keeps Popen from warning that the process still runs.
            process.returncode = process.returncode if ended else 0
            return endpoint
        if ended:
            raise BackendNotStarted(f"the local backend did not start: {_why_it_ended()}")
        time.sleep(_POLL)
    raise BackendNotStarted(f"the local backend did not answer within {START_SECONDS:.0f} s; see {paths.backend_log()}")


def _answers(endpoint: Endpoint) -> bool:
    plain = endpoint.transport()
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    try:
        return plain.send(Request("GET", wire.CONF, headers, timeout=10)).status == 200
    except Unreachable:
        return False
    finally:
        plain.close()


def _why_it_ended() -> str:
    """Return why the backend ended: the last line of its log, or a full disk, on which it cannot write a log."""
    place = home.home()
    disk = os.statvfs(place)
    if disk.f_bavail * disk.f_frsize < _FULL:
        return f"the disk of {place} is full"
    try:
        with open(paths.backend_log(), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    lines = [line.strip() for line in lines if line.strip()]
    return lines[-1] if lines else f"{paths.backend_log()} contains no message"


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32" or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
