"""Adds the server's packages after those of a user, when a Python of the user's environment starts.

This file is copied into each such environment, and runs in the programs of users. It imports the standard library only.
"""

import os
import site
import sys

#: Set while this pip holds the lock. Its child processes, such as builds that install packages, must not wait for it.
_HELD = "DLI_PIP_LOCK"
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
    if first and installs(sys.orig_argv):
        _wait_for_others()


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
