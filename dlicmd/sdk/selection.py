"""The files of a model folder to send, and what is left out by which rule."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dlicmd.contract.left_out import (
    DEFAULT_IGNORES,
    GIT_IGNORE,
    IGNORE_FILE,
    INCLUDE,
    SECRET_IGNORES,
    VIRTUAL_ENVIRONMENT,
    own_lines,
)
from dlicmd.contract.sizes import show_size
from dlicmd.sdk import hints
from dlicmd.sdk.errors import PackageError
from dlicmd.sdk.messages import info, warn

#: Files that often hold secrets, and that programs may need: sent with a warning.
DOUBTFUL = (".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx")
_SECRET = "secret"
#: From this many bytes on, a message names the largest entries; and the number of them.
LARGE, MOST_NAMED = 100 * 2**20, 3
#: The most skipped entries that are named one by one.
NAMED = 5
#: The message mentions .gitignore if it excludes more than this part of the bytes.
_MUCH = 0.25


class Entry(NamedTuple):
    """One file or folder to send: its name below the top folder, its path, and its size in bytes."""

    name: str
    path: str
    is_dir: bool = False
    size: int = 0


class LeftOut(NamedTuple):
    """A file or folder that is not sent, with the rule. The name of a folder ends with a slash."""

    name: str
    why: str


class _Rules:
    """Patterns in gitignore syntax, each with its source."""

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        from pathspec import GitIgnoreSpec  # only for a folder

        self._lines = [one for one in lines if one[0]]
        self._spec: Any = GitIgnoreSpec.from_lines([pattern for pattern, _ in self._lines])

    def why(self, name: str) -> str | None:
        """Return the pattern that excludes a name, with its source; None if the name is not excluded."""
        found = self._spec.check_file(name)
        return "{} ({})".format(*self._lines[found.index]) if found.include else None


@dataclass
class Selection:
    """The result of a walk through the model folder. `skipped` are links and special files."""

    folder: Path
    rules: _Rules
    doubts: _Rules
    entries: list[Entry] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    skipped: list[LeftOut] = field(default_factory=list)

    @property
    def files(self) -> list[Entry]:
        """The files, without the folders."""
        return [entry for entry in self.entries if not entry.is_dir]

    @property
    def size(self) -> int:
        """The number of bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def tell(self) -> None:
        """Warn about secrets, skipped links and special files. If the folder is large, say which files make it
        large."""
        self._tell_secrets()
        for one in self.skipped[:NAMED]:
            warn(f"skipping {one.name} ({one.why})")
        if len(self.skipped) > NAMED:
            warn(f"skipping {len(self.skipped) - NAMED} more links and special files")
        if self.size > LARGE:
            self._tell_large()

    def _tell_secrets(self) -> None:
        kept = [one.name for one in self.left_out if one.why.endswith(f"({_SECRET})")]
        if kept:
            warn(f"left out {_some(kept)}: such files hold keys or passwords. To send one, write !NAME into "
                 f"{IGNORE_FILE}")
        sent = [entry.name for entry in self.files if self.doubts.why(entry.name) is not None]
        if sent:
            warn(f"sending {_some(sent)}: such files often hold secrets. To leave a file out, write its name into "
                 f"{IGNORE_FILE}; to send it without this warning, write !NAME")

    def _tell_large(self) -> None:
        total, listed = self.size, hints.either("; --dry-run lists all files", "")
        named = ", ".join(f"{name} ({show_size(size)})" for name, size in self._largest())
        info(f"the folder has {show_size(total)} to send; largest: {named}. To leave out what the program does not "
             f"need, write patterns into {self.folder / IGNORE_FILE}, 1 per line, as in {GIT_IGNORE}{listed}")
        ignored = self._ignored_by_git()
        if ignored > total * _MUCH:
            info(f"{GIT_IGNORE} excludes {show_size(ignored)} of it, but has no effect on jobs, because data and "
                 f"weights are often in it. To apply it, add this line to {IGNORE_FILE}: {INCLUDE}{GIT_IGNORE}")

    def _largest(self) -> list[tuple[str, int]]:
        """Return the largest files and folders directly in the folder, with their bytes."""
        sizes: dict[str, int] = {}
        for entry in self.entries:
            first, _, rest = entry.name.partition("/")
            name = f"{first}/" if rest or entry.is_dir else first
            sizes[name] = sizes.get(name, 0) + entry.size
        return sorted(sizes.items(), key=lambda item: -item[1])[:MOST_NAMED]

    def _ignored_by_git(self) -> int:
        """Return the number of bytes that the .gitignore of the folder excludes."""
        try:
            rules = _Rules([(line, GIT_IGNORE) for line in (self.folder / GIT_IGNORE).read_text().splitlines()])
        except (OSError, ValueError):
            return 0
        return sum(entry.size for entry in self.files if rules.why(entry.name) is not None)

    def walk(self, path: str, prefix: str, above: tuple[str, ...]) -> None:
        """Collect the entries of `path`; `above` are the real paths of the folders around it. Raises PackageError."""
        try:
            with os.scandir(path) as found:
                items = sorted(found, key=lambda item: item.name)
        except OSError as problem:
            raise PackageError(f"cannot read the folder {path}: {problem.strerror}") from None
        for item in items:
            self._item(item, f"{prefix}{item.name}", above)

    def _item(self, item: os.DirEntry[str], name: str, above: tuple[str, ...]) -> None:
        try:
            about = item.stat(follow_symlinks=False)
            mode = about.st_mode
            if stat.S_ISLNK(mode):
                if self._is_left_out(name):
                    return
                real = os.path.realpath(item.path)
                if os.path.commonpath([above[0], real]) != above[0]:
                    return self._skip(name, "a link that leads outside the folder")
                about = os.stat(real)
                mode = about.st_mode
        except FileNotFoundError:
            return self._skip(name, "a broken link")
        except OSError as problem:
            return self._skip(name, problem.strerror or "unreadable")
        if stat.S_ISDIR(mode):
            self._folder(item.path, name, above)
        elif self._is_left_out(name):
            return
        elif stat.S_ISREG(mode):
            self.entries.append(Entry(name, item.path, size=about.st_size))
        else:
            self._skip(name, "neither a file nor a folder")

    def _folder(self, path: str, name: str, above: tuple[str, ...]) -> None:
        if self._is_left_out(name + "/"):
            return
        if os.path.lexists(os.path.join(path, VIRTUAL_ENVIRONMENT)):
            self.left_out.append(LeftOut(name + "/", "a virtual environment (default)"))
            return
        real = os.path.realpath(path)
        if real in above:
            return self._skip(name, "a circular link")
        self.entries.append(Entry(name, path, is_dir=True))
        self.walk(path, name + "/", (*above, real))

    def _is_left_out(self, name: str) -> bool:
        why = self.rules.why(name)
        if why is not None:
            self.left_out.append(LeftOut(name, why))
        return why is not None

    def _skip(self, name: str, why: str) -> None:
        self.skipped.append(LeftOut(name, why))


def select(folder: Path) -> Selection:
    """Return the files of `folder` to send, in a fixed order. Raises PackageError."""
    own = _own_lines(folder)
    found = Selection(folder, _rules(folder, own), _rules(folder, own, doubtful=True))
    found.walk(str(folder), "", (os.path.realpath(folder),))
    return found


def _own_lines(folder: Path) -> list[tuple[str, str]]:
    own = folder / IGNORE_FILE
    try:
        return list(own_lines(lambda name: (folder / name).read_text(encoding="utf-8"))) if own.is_file() else []
    except (OSError, ValueError) as problem:
        raise _unusable(own, problem) from None


def _rules(folder: Path, own: list[tuple[str, str]], doubtful: bool = False) -> _Rules:
    """Return the rules that leave files out; or those for files that are sent with a warning."""
    if doubtful:
        ours = [(pattern, "doubtful") for pattern in DOUBTFUL]
    else:
        ours = [*((pattern, "default") for pattern in DEFAULT_IGNORES),
                *((pattern, _SECRET) for pattern in SECRET_IGNORES)]
    try:
        return _Rules([*ours, *own])
    except ValueError as problem:
        raise _unusable(folder / IGNORE_FILE, problem) from None


def _unusable(own: Path, problem: Exception) -> PackageError:
    return PackageError(f"cannot use {own}: {' '.join(str(problem).split())}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
