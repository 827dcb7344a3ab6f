"""The sandbox of one attempt on a server for a team: it shows the job its own files and processes only.

bubblewrap (`bwrap`) makes the namespaces and all mounts. It runs one idle process in them, which keeps them in being.
The runner stays outside: it enters only the owning user namespace, so that it may start processes in the namespaces of
processes (PID) and set up their mounts. Every process of the job is a child of the runner that `enter`s the sandbox
before it runs anything of the user.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from local_backend import own_process
from local_backend.runtime import processes
from local_backend.runtime.view import TEMPORARY, Mount, arguments

PROGRAM = "bwrap"
_NEW_USER, _NEW_MOUNTS, _NEW_IPC, _NEW_PID = 0x10000000, 0x00020000, 0x08000000, 0x20000000
#: ioctl of a namespace: return a descriptor of the user namespace that owns it.
_NS_GET_USERNS = 0xB701
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
#: Number of the system call keyctl.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
_JOIN_SESSION_KEYRING = 1
_CAPABILITY_VERSION = 0x20080522
#: More than any kernel has.
_CAPABILITIES = 64
_IDLE = "/bin/cat"
#: Forbids user namespaces in the sandbox.
_NO_MORE_NAMESPACES = "--disable-userns"
_READY = b"."


class SandboxError(OSError):
    """A sandbox cannot be made on this machine. The text says why."""


class Sandbox:
    """The namespaces of one attempt, with an idle process that holds them."""

    def __init__(self, holder: subprocess.Popen[bytes], first: int) -> None:
        """`first` is the process 1 of the sandbox, as this process sees it."""
        self._holder = holder
        self._first = first
        names = ("user", "mnt", "ipc", "pid")
        self._user, self._mounts, self._ipc, self._pid = [
            os.open(f"/proc/{first}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
        self._owner = fcntl.ioctl(self._pid, _NS_GET_USERNS)
        #: The processes that hold the namespaces. They are below this process, and are not processes of the job.
        self.processes = frozenset({holder.pid, first, *(child.pid for child in psutil.Process(first).children())})

    @classmethod
    def start(cls, mounts: Sequence[Mount], temporary: Path, environment: Mapping[str, str]) -> Sandbox:
        """Make a sandbox that shows `mounts`, and the folder `temporary` as TEMPORARY. The processes that hold it get
        `environment`. Raises SandboxError."""
        program = shutil.which(PROGRAM)
        if program is None:
            raise SandboxError(f"the program {PROGRAM} (bubblewrap) is not installed")
        shown = ["--bind", str(temporary), TEMPORARY, *arguments(mounts), "--chdir", "/", "--", _IDLE]
        try:
            return cls._start([program, _NO_MORE_NAMESPACES, *shown], environment)
        except SandboxError as problem:
            if _NO_MORE_NAMESPACES not in str(problem):
                raise
            return cls._start([program, *shown], environment)  # bubblewrap before 0.8 has no such option

    @classmethod
    def _start(cls, words: list[str], environment: Mapping[str, str]) -> Sandbox:
        program, *rest = words
        told, tell = os.pipe()
        words = [program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--info-fd",
                 str(tell), *rest]
        try:
            with own_process.unchangeable(program) as (file, keep):
                holder = subprocess.Popen(
                    words, executable=file, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    pass_fds=[tell, *keep], env=dict(environment), cwd="/")
        except OSError as problem:
            os.close(told)
            raise SandboxError(f"cannot start {program}: {problem}") from None
        finally:
            os.close(tell)
        with os.fdopen(told, "rb") as info:
            return cls(holder, _ready(holder, info.read()))

    def lead(self, user: str) -> None:
        """Let this process start its later children, which are jobs of a user, in the sandbox. It must have 1 thread,
        and can have no more afterwards. Raises OSError."""
        _leave_keyring(user)
        _enter(self._owner, _NEW_USER)
        _enter(self._pid, _NEW_PID)
        own_process.hide()  # the entry into a user namespace sets this to a default of the system

    def enter(self) -> None:
        """Let this process, a child of the one that leads, see the sandbox only, without any privilege. It stays hidden
        from the job, because it still has the open files of its parent. Raises OSError."""
        _enter(self._ipc, _NEW_IPC)
        _enter(self._mounts, _NEW_MOUNTS)
        if not os.path.sameopenfile(self._user, self._owner):
            _enter(self._user, _NEW_USER)
        _drop_privileges()
        own_process.hide()  # the entry into a user namespace sets this to a default of the system

    def run(self, work: Callable[[], None]) -> None:
        """Let a child of this process, which leads, do some work in the sandbox, where a program of the user cannot
        lead it to other files. Raises SandboxError with the text of any error."""
        told, tell = os.pipe()
        if (child := os.fork()) == 0:
            try:
                self.enter()
                work()
            except BaseException as problem:
                os.write(tell, (str(problem) or type(problem).__name__).encode(errors="replace")[:4000])
            finally:
                os._exit(0)
        os.close(tell)
        with open(told, "rb") as said:
            trouble = said.read().decode(errors="replace")
        os.waitpid(child, 0)
        if trouble:
            raise SandboxError(trouble)

    def check(self) -> None:
        """Raise SandboxError when the sandbox has ended, for example because the program has killed all processes that
        it sees."""
        if processes.start_time(self._first) is None:
            raise SandboxError("the sandbox of the job has ended, because its idle process was killed")


def probe(mounts: Sequence[Mount], folder: Path) -> None:
    """Make a sandbox with `folder` as TEMPORARY, and run a program in it. This process can start no thread afterwards.
    Raises SandboxError."""
    sandbox = Sandbox.start(mounts, folder, os.environ)
    try:
        sandbox.lead("")
    except OSError as problem:
        raise SandboxError(f"cannot enter the sandbox: {problem.strerror or problem}") from None
    sandbox.run(_look_around)


def _look_around() -> None:
    """Raise an error if this process still sees what is outside of the sandbox."""
    if os.getppid() != 0 or not os.access(TEMPORARY, os.W_OK) or os.access("/usr", os.W_OK):
        raise SandboxError("the sandbox does not separate processes or files")
    subprocess.run(["/bin/sh", "-c", ":"], check=True)


def _ready(holder: subprocess.Popen[bytes], info: bytes) -> int:
    """Wait until the idle process answers; return process 1 of the sandbox. Raises SandboxError."""
    assert holder.stdin is not None and holder.stdout is not None and holder.stderr is not None
    try:
        os.write(holder.stdin.fileno(), _READY)
        if os.read(holder.stdout.fileno(), 1) == _READY:
            return int(json.loads(info)["child-pid"])
    except (OSError, ValueError, KeyError):
        pass
    said = " ".join(holder.communicate()[1].decode(errors="replace").split()[-60:])
    raise SandboxError(said or f"{PROGRAM} ended with status {holder.returncode}")


def _enter(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter a namespace ({kind:#x}): {os.strerror(number)}")


def _leave_keyring(user: str) -> None:
    """Leave the session keyring of the server, in which all jobs would find the keys of the server and of each other,
    for one of this user. Systems may forbid this, and then forbid jobs to use keyrings, too."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, f"dlicmd {user}".encode())


def _drop_privileges() -> None:
    """Give up all capabilities of this process and of those that it starts or becomes. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(_CAPABILITIES):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for numbers that the kernel does not have
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot drop privileges: {os.strerror(number)}")
