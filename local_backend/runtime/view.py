"""What a sandboxed job sees of the machine: the system and Python, to read; its own folders, and the data that its user
may use. Everything else does not exist for the job.

A `Mount` is a kind and a path; each path is shown at its own place. The server decides, when it prepares an attempt
(`of_job`); the runner passes the `arguments` to bubblewrap.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import local_backend
from dlicmd import program_log
from local_backend.data import areas
from local_backend.data.errors import DataError
from local_backend.data.storage import inside
from local_backend.runtime.user_python import server_folders
from local_backend.scheduler.model import Slot
from local_backend.settings import Settings
from local_backend.sources.volumes import cache_for, is_volume, roots
from local_backend.workload import Workload

#: (kind, path), or for LINK (kind, path, target). A later mount of the same path replaces an earlier one.
Mount = Sequence[str]
#: To read; to read and write; a device; an empty folder instead; an empty file instead; a symbolic link.
READ, WRITE, DEVICE, EMPTY, BLANK, LINK = "read", "write", "device", "empty", "blank", "link"
#: The job's TMPDIR in the sandbox.
TEMPORARY = "/tmp"
_OPTIONS = {READ: "--ro-bind-try", WRITE: "--bind", DEVICE: "--dev-bind-try"}

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/sys/block",
           "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/module", "/var/lib/ca-certificates")
#: Files of /etc that may be links to folders of the running system.
_LINKED = ("/etc/resolv.conf", "/etc/hosts", "/etc/localtime")
#: Files and folders of /proc with settings of the machine. Also without privileges, the account root may write some of
#: them, so they are shown for reading only.
_SETTINGS = ("bus", "driver", "fs", "irq", "sys", "sysrq-trigger", "tty")
#: Those that tell about the memory and the devices of the whole machine.
_INTERNALS = ("acpi", "asound", "kcore", "keys", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "mtrr",
              "scsi", "sched_debug", "timer_list", "timer_stats")
#: The folder in which WMLA mounts volumes. Programs contain its path.
_MNTS = "/mnts"
_GPU = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")
_OTHERS_READ = {True: stat.S_IROTH | stat.S_IXOTH, False: stat.S_IROTH}


def of_job(
    settings: Settings, spec: Workload, slots: Sequence[Slot], machine: Iterable[Mount]
) -> tuple[Mount, ...]:
    """Return what an attempt of this workload sees, `machine` included. Raises OSError, also when the server cannot
    find out which data the user may use."""
    home, user = settings.paths, spec.creator
    paths = home.job(spec.id, user)
    try:
        found: list[Mount] = [*machine, *_data(settings, spec)]
    except DataError as problem:
        raise OSError(str(problem)) from None
    found += [(READ, str(path)) for path in (home.fabric_home, home.scripts)]
    found += [(READ, str(paths.data)), (WRITE, str(home.user(user))), (WRITE, str(home.result_fs / user)),
              (EMPTY, str(paths.root.parent)), (WRITE, str(paths.root))]
    if spec.service is not None:
        # The folder, because a gateway that starts again makes another socket. Nothing else is in it.
        found.append((READ, os.path.dirname(spec.service.socket)))
    found += of_environment(settings, spec.environment.conda_env)
    if any(slot.device for slot in slots):
        found += [(DEVICE, path) for pattern in _GPU for path in sorted(glob.glob(pattern))]
    return _with_links(found)


def of_environment(settings: Settings, path: str | None) -> list[Mount]:
    """Return what shows the Python environment that a user has named: nothing, unless only root or the account of the
    server can replace it."""
    if not path or _may_be_replaced(settings, path):
        return []
    links, real = _resolve(path)
    return [*links, (READ, real)] if _is_environment(real) else []


def of_machine(settings: Settings) -> tuple[Mount, ...]:
    """Return what every job sees: the system and the server's Python, without the server's own folders and secrets."""
    home = settings.paths
    found: list[Mount] = [(READ, path) for path in (*_SYSTEM, *map(os.path.realpath, _LINKED)) if os.path.lexists(path)]
    found += [(BLANK if not os.path.isdir(path) else EMPTY, path) for path in _closed_to_others("/etc")]
    found += [(READ, path) for path in (*_python(), *settings.job_folders)]
    hidden = [home.home, home.result_fs, settings.cache, settings.shared_cache_dir, settings.volumes]
    found += [(EMPTY, str(path)) for path in hidden if path is not None]
    secrets = [settings.tls_key, settings.connections, os.environ.get("PGPASSFILE")]
    found += [(BLANK, os.path.realpath(path)) for path in secrets if path is not None and os.path.exists(path)]
    return _with_links(found)


def _data(settings: Settings, spec: Workload) -> Iterator[Mount]:
    """Yield DLI_DATA_FS to read, without the areas of users; the user's own area; the volumes that the user may use;
    and the data that the workload names. Raises DataError."""
    user, data_fs = spec.creator, settings.data_fs
    may = roots(settings, user, admin=False)
    yield READ, str(data_fs)
    yield from ((EMPTY, place) for place in may.closed.values() if os.path.isdir(place))
    own = data_fs / areas.area_of(user)
    if own.is_dir():
        yield WRITE, str(own)
    volumes = [path for path in settings.volumes.glob("*")
               if path.name not in may.closed and is_volume(settings, path)]
    yield from ((WRITE, str(path)) for path in volumes)
    if str(settings.volumes) != _MNTS:
        yield from ((LINK, f"{_MNTS}/{path.name}", str(path)) for path in volumes)
    writable = [str(own), *map(os.path.realpath, volumes)]
    named = [spec.data.data_dir, *(source.path for source in spec.data.sources if not source.fetched)]
    for path in filter(None, named):
        real = os.path.realpath(path)
        if path == real and not any(inside(real, folder) for folder in writable):
            yield READ, path
    for number, source in enumerate(spec.data.sources, 1):
        if source.fetched:
            folder = settings.paths.job(spec.id, user).data_folder(number, source.name)
            yield from ((READ, path) for path in _entries(cache_for(settings, source.target), folder))


def _is_environment(path: str) -> bool:
    """Return whether a real path is a Python environment that only root or the account of the server can replace.
    Users name it, and the mount has the rights of the server: any other folder with a `bin/python`, such as a home
    directory, must stay closed."""
    if not any(os.path.exists(os.path.join(path, name)) for name in ("conda-meta", "pyvenv.cfg")):
        return False
    for folder in (path, *map(str, Path(path).parents)):
        status = os.lstat(folder)
        is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or is_open or not stat.S_ISDIR(status.st_mode):
            return False
    return True


def _may_be_replaced(settings: Settings, path: str) -> bool:
    """Return whether a program could put a link in the place of a path, or the path is a folder of the server."""
    home = settings.paths
    places = [home.home, home.data_fs, home.result_fs, settings.volumes, *settings.volumes.glob("*")]
    return any(inside(one, os.path.realpath(place)) for one in (path, os.path.realpath(path)) for place in places)


def _entries(cache: Path, folder: Path) -> Iterator[str]:
    """Yield the folders with files of a cache that `folder` has links to, as the fetcher has recorded it in the cache.
    The links themselves do not count: a program could have made them."""
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
    for entry in os.scandir(cache) if cache.is_dir() else ():
        if os.path.lexists(os.path.join(entry.path, "uses", name)):
            yield os.path.join(entry.path, "files")


def _python() -> Iterator[str]:
    """Yield the folders of the server's Python, of its packages, and of those that jobs inherit by PYTHONPATH."""
    base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    yield from dict.fromkeys([sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.path.dirname(base)),
                              sys.prefix, sys.exec_prefix])
    yield from server_folders()
    packages = [Path(module.__file__ or "").parent for module in (program_log, local_backend)]
    yield from map(str, packages)
    sources = {str(package.parent) for package in packages}
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for folder in dict.fromkeys([*sys.path[1:], *inherited]):
        if os.path.isabs(folder) and os.path.isdir(folder) and folder not in sources:
            yield folder


def _closed_to_others(top: str) -> Iterator[str]:
    """Yield the files and folders below `top` that not all accounts of the machine may read, such as /etc/shadow."""
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            is_folder = stat.S_ISDIR(mode)
            needed = _OTHERS_READ[is_folder]
            if (is_folder or stat.S_ISREG(mode)) and mode & needed != needed:
                yield path
                if is_folder:
                    folders.remove(name)


def _with_links(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return the mounts at their real paths, and the symbolic links on the way to each path."""
    found: list[Mount] = []
    for kind, path, *target in mounts:
        if kind == LINK:
            found.append((kind, path, *target))
            continue
        links, real = _resolve(path)
        found += [*links, (kind, real)]
    return tuple(dict.fromkeys(map(tuple, found)))


def _resolve(path: str) -> tuple[list[Mount], str]:
    """Return the symbolic links on the way of an absolute path, and its real path."""
    links: list[Mount] = []
    at, rest = "/", path.split("/")
    while rest and len(links) < 40:
        part = rest.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, part)
        if not os.path.islink(here):
            at = here
            continue
        target = os.readlink(here)
        links.append((LINK, here, target))
        at, rest = "/" if target.startswith("/") else at, [*target.split("/"), *rest]
    return links, at


def _base() -> Iterator[str]:
    """Yield the arguments for /proc and /dev, and for the folders that every system has."""
    yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/run", "--symlink", TEMPORARY, "/var/tmp")
    for name in _SETTINGS:
        yield from ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")
    for path in (f"/proc/{name}" for name in _INTERNALS):
        if os.path.isdir(path):
            yield from ("--tmpfs", path, "--remount-ro", path)
        elif os.path.exists(path):
            yield from ("--ro-bind", os.devnull, path)


def arguments(mounts: Sequence[Mount]) -> list[str]:
    """Return the arguments of bubblewrap that make the view. Outer folders come first."""
    last = {path: (kind, *target) for kind, path, *target in mounts}
    last = {path: last[path] for path in sorted(last, key=lambda path: path.count("/"))}
    kinds = {TEMPORARY: WRITE} | {path: kind for path, (kind, *_) in last.items()}
    words = [*_base()]
    empty: list[str] = []
    for path, (kind, *target) in last.items():
        around = next((kinds[above] for above in map(str, Path(path).parents) if above in kinds), EMPTY)
        if kind == LINK:
            if around == EMPTY:
                words += ["--symlink", *target, path]
        elif kind == BLANK:
            if around != EMPTY:
                words += ["--ro-bind", os.devnull, path]
        elif kind == EMPTY:
            if around != EMPTY:
                words += ["--tmpfs", path]
                empty.append(path)
        elif (kind, around) != (READ, READ):
            words += [_OPTIONS[kind], path, path]
    for path in (*reversed(empty), "/"):
        words += ["--remount-ro", path]
    return words
