"""Adds the server's packages after those of a user, and shows the title of a process of a job, when a Python of the
user's environment starts.

This file is copied into each such environment, and runs in the programs of users. It imports the standard library only.
"""

import os
import site
import sys

#: Set while this pip holds the lock. Its child processes, such as builds that install packages, must not wait for it.
_HELD = "DLI_PIP_LOCK"
#: The title of this process, for its first Python alone.
TITLE = "DLI_PROCESS_TITLE"
_laid = False


def lay(folders: list[str]) -> None:
    """Add the server's `folders` of packages after the user's own. If this process is an installing pip, let it wait.

    Does nothing in a Python that finds this file through PYTHONUSERBASE, for example the system's. If the server itself
    runs in such an environment, a second call adds the folders below it.
    """
    global _laid
    own = os.path.dirname(os.path.abspath(__file__))
    if not os.path.realpath(own).startswith(os.path.realpath(sys.prefix) + os.sep):
        return
    first, _laid = not _laid, True
    # Hide the packages of the base Python: `folders` has all packages that the server sees. pyvenv.cfg includes them
    # only because pip otherwise refuses `--user`.
    site.getsitepackages = lambda prefixes=None: [own]
    for folder in folders:
        if folder not in sys.path:
            site.addsitedir(folder)
    if first and (title := os.environ.pop(TITLE, "")):
        show_title(title)
    if first and installs(sys.orig_argv):
        _wait_for_others()


def title_of(exec_id: str, number: int) -> str:
    """Return the title of a process of an exec: of the driver (0), or of a worker."""
    return f"dlicmd {exec_id} " + (f"worker {number}" if number else "driver")


def show_title(title: str) -> None:
    """Show `title` in place of the command line of this process, in `ps` and `nvidia-smi`, and a short form in `top`.

    `sys.argv` does not change. Does nothing on systems without /proc.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        # The last byte stays 0: otherwise the system shows the environment as a part of the command line.
        shown = title.encode()[: max(0, end - begin - 1)].ljust(end - begin, b"\0")
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(shown)
        with open("/proc/self/comm", "w") as file:
            file.write(short_title(title))
    except (OSError, ValueError, IndexError):
        pass


def short_title(title: str) -> str:
    """Return a title in the 15 bytes that `top` shows: `local-7 w2`."""
    short = title.replace(" worker ", " w")
    return short if len(short) <= 15 else short.removeprefix("dlicmd ")[:15]


def installs(argv: list[str]) -> bool:
    """Return whether a command line runs a pip that changes packages."""
    at = next((number for number, word in enumerate(argv) if number and not word.startswith("-")), 0)
    is_pip = os.path.basename(argv[at]).rstrip("0123456789.") == "pip"  # `-m pip`, or the script itself
    return is_pip and not {"install", "uninstall"}.isdisjoint(argv[at:])


def _wait_for_others() -> None:
    """Take a lock until this process ends. Two processes of pip that write the same files damage a package."""
    import fcntl  # not in every program that starts

    if _HELD in os.environ:
        return
    os.environ[_HELD] = str(os.getpid())
    fd = os.open(os.path.join(sys.prefix, ".pip.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another pip that changes your packages", file=sys.stderr, flush=True)
        fcntl.flock(fd, fcntl.LOCK_EX)
