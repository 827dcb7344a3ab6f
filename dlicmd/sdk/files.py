"""Fetching files that the program of an exec wrote: several in one go, with their folders.

Everything is checked before the first file is fetched. A file gets the time of the file on the server. So a later call
finds the files that are complete, and an interrupted fetch continues.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dlicmd.contract.sizes import show_size
from dlicmd.sdk import hints
from dlicmd.sdk.errors import ResultError
from dlicmd.sdk.exec_calls import ExecCalls
from dlicmd.sdk.messages import Progress, file_count, inert, silent
from dlicmd.sdk.objects import File
from dlicmd.sdk.paths import safe_path
from dlicmd.sdk.results import MOST_NAMES, Wanted, check_distinct, check_hidden, fetch

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=timezone.utc), timedelta(microseconds=1)


class Choice(NamedTuple):
    """A file to fetch, its path below the folder of the user, and whether the user named this very file."""

    file: File
    path: PurePosixPath
    is_named: bool = False


def chosen(files: Sequence[File], words: Sequence[str]) -> list[Choice]:
    """Return the files that the words select; all files without words.

    A word is the path of a file, its name if no other file has that name, a folder, or a pattern such as `*.png`. A
    file goes to its own name, a folder to its own name with all folders below it, and the files of a pattern keep their
    folders. Raises ResultError when a word selects no file, or when two files have one place.
    """
    paths = {file.path: _checked(file.path) for file in files}
    found: dict[str, PurePosixPath] = {} if words else dict(paths)
    for word in words:
        found |= _selected(paths, word)
    named = {word.removeprefix("./") for word in words}
    places = list(found.values())
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise ResultError(f"two of the selected files have the name {twice}; fetch one of them at a time")
    return [Choice(file, found[file.path], not named.isdisjoint((file.path, paths[file.path].name)))
            for file in files if file.path in found]


def fetch_files(
    client: ExecCalls, exec_id: str, choices: Sequence[Choice], folder: Path, *, force: bool,
    progress: Progress = silent,
) -> list[Path]:
    """Fetch files into `folder`, which is created if necessary, and return their new paths. Files that an earlier call
    has fetched stay as they are. Raises DlicmdError; ResultError before anything is fetched when another file is in the
    way or the disk is too small."""
    left = [choice for choice in choices if not _is_fetched(choice, folder)]
    if not force:
        check_hidden([choice.path for choice in left if not choice.is_named], folder, exec_id)
    check_distinct([choice.path for choice in choices], folder)
    _check_places(left, folder, force)
    _check_room(left, folder)
    total = sum(choice.file.bytes or 0 for choice in left)
    done = 0
    with progress(f"downloading {file_count(len(left))}", total) as shown:
        for file, path, _ in left:
            target = folder / path
            fetched = fetch(client, Wanted(exec_id, file.path, path.name), target.parent, force, _part(shown, done))
            _set_time(fetched, file)
            done += file.bytes or 0
    return [folder / choice.path for choice in choices]


def _checked(path: str) -> PurePosixPath:
    found = safe_path(path)
    if found is None:
        raise ResultError(f"nothing was fetched: the server lists the unsafe path '{inert(path)[:100]}'")
    return found


def _selected(paths: dict[str, PurePosixPath], word: str) -> dict[str, PurePosixPath]:
    """Return the paths that one word selects, each with its place."""
    name = word.removeprefix("./").rstrip("/")
    if name in paths:
        return {name: PurePosixPath(paths[name].name)}
    above = PurePosixPath(name).parent
    below = {path: place.relative_to(above) for path, place in paths.items() if path.startswith(f"{name}/")}
    if below:
        return below
    named = [path for path, place in paths.items() if place.name == name]
    if len(named) == 1:
        return {named[0]: PurePosixPath(name)}
    if named:
        raise ResultError(f"{len(named)} files have the name {word}: {_some(named)}; give the path of one")
    matched = {path: place for path, place in paths.items()
               if fnmatch.fnmatchcase(path, name) or ("/" not in name and fnmatch.fnmatchcase(place.name, name))}
    if not matched:
        raise ResultError(_no_file(list(paths), word))
    return matched


def _no_file(paths: list[str], word: str) -> str:
    import difflib  # only for wrong words

    if not paths:
        return "the program has written no files"
    near = difflib.get_close_matches(word, [*paths, *(PurePosixPath(path).name for path in paths)], n=1)
    meant = f"did you mean{hints.replaced(word, near[0])}" if near else f"the files are: {_some(paths)}"
    return f"the program has written no file '{word}'; {meant}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return inert(", ".join(names[:MOST_NAMES])) + (f" and {more} more" if more > 0 else "")


def _is_fetched(choice: Choice, folder: Path) -> bool:
    """Return whether the file is there already, with the size and the time that it has on the server."""
    try:
        found = (folder / choice.path).lstat()
    except OSError:
        return False
    return found.st_size == choice.file.bytes and found.st_mtime_ns // 1000 == _microseconds(choice.file)


def _check_places(choices: Sequence[Choice], folder: Path, force: bool) -> None:
    """Raise ResultError when a file cannot be stored at its place."""
    for above in {above for choice in choices for above in list(choice.path.parents)[:-1]}:
        path = folder / above
        if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
            raise ResultError(f"nothing was fetched: {path} exists already and is not a folder; move it, or "
                              f"{hints.another_folder()}")
    there = [str(folder / choice.path) for choice in choices if os.path.lexists(folder / choice.path)]
    odd = [name for name in there if os.path.islink(name) or not os.path.isfile(name)]
    if odd:
        raise ResultError(f"nothing was fetched: {_some(odd)} exists already and is not a regular file; move it, or "
                          f"{hints.another_folder()}")
    if there and not force:
        exists = f"{there[0]} exists" if len(there) == 1 else f"{len(there)} files exist"
        named = "" if len(there) == 1 else f" ({_some(there)})"
        raise ResultError(f"nothing was fetched: {exists} already{named}; {hints.overwriting()}")


def _check_room(choices: Sequence[Choice], folder: Path) -> None:
    """Raise ResultError when the files would fill the disk."""
    present = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    needed, free = sum(choice.file.bytes or 0 for choice in choices), shutil.disk_usage(present).free
    if needed >= free:
        raise ResultError(f"nothing was fetched: the files need {show_size(needed)}, and {folder} has "
                          f"{show_size(free)} free; {hints.another_folder()}")


def _part(shown: Callable[[int], None] | None, before: int) -> Progress:
    """Return the progress of one file as a part of the progress of all files, of which `before` bytes are done."""
    @contextmanager
    def part(_title: str, _total: int | None = None) -> Iterator[Callable[[int], None] | None]:
        yield None if shown is None else lambda done: shown(before + done)

    return part


def _microseconds(file: File) -> int | None:
    """Return the time of the last change on the server, in microseconds since 1970."""
    try:
        found = datetime.strptime(file.modified, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return (found - _EPOCH) // _MICROSECOND


def _set_time(path: Path, file: File) -> None:
    at = _microseconds(file)
    if at is not None:
        with contextlib.suppress(OSError):
            os.utime(path, ns=(path.stat().st_atime_ns, at * 1000))
