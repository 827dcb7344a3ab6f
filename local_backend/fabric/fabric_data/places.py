"""The locations of a job's data."""

from __future__ import annotations

import json
import os
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabric_data.errors import DataProblem

#: The variable that names a JSON file with the data sources of the job.
SOURCES_VARIABLE = "DLI_DATA_SOURCES_FILE"


@dataclass(frozen=True)
class Source:
    """A data source of this job: its name in the submission, and its path."""

    name: str
    path: Path
    #: The whole entry of the source in that file.
    about: dict[str, Any] = field(default_factory=dict, compare=False)


def sources() -> list[Source]:
    """Return the data sources of this job, in the order of the submission; only DATA_DIR if there is no list.

    Raises DataProblem.
    """
    listed = os.environ.get(SOURCES_VARIABLE)
    if listed:
        try:
            found = json.loads(Path(listed).read_text(encoding="utf-8"))
            return [Source(str(item["name"]), Path(item["path"]), item) for item in found if item.get("path")]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise DataProblem(f"{SOURCES_VARIABLE}={listed} cannot be read: {problem}") from None
    folder = os.environ.get("DATA_DIR")
    return [Source("", Path(folder))] if folder else []


@dataclass(frozen=True)
class Remote:
    """A file on another server, read through fsspec."""

    url: str
    options: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return self.url

    def opened(self) -> Any:
        """Open the file for reading. Raises DataProblem."""
        system, path = self._system()
        try:
            return system.open(path, "rb")
        except OSError as problem:
            raise DataProblem(f"{self.url} cannot be read: {problem}") from None

    def identity(self) -> list[str]:
        """Return values that change when the file changes. Raises DataProblem."""
        system, path = self._system()
        try:
            known = system.info(path)
        except OSError as problem:
            raise DataProblem(f"{self.url} cannot be read: {problem}") from None
        marks = (known.get(name) for name in ("size", "ETag", "etag", "LastModified", "last_modified", "mtime"))
        return [self.url, *(str(mark) for mark in marks if mark is not None)]

    def _system(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError:
            raise DataProblem("streams need fsspec: pip install fsspec") from None
        try:
            found: tuple[Any, str] = fsspec.core.url_to_fs(self.url, **self.options)
        except (ImportError, ValueError) as problem:
            raise DataProblem(f"{self.url} cannot be read: {problem}") from None
        return found


def streamed(source: str | os.PathLike[str] | None) -> list[Remote]:
    """Return the files of a source that is streamed and not fetched; empty for other sources. Raises DataProblem."""
    known = sources() if source is None else _called(source)
    if not known or known[0].about.get("access") != "stream":
        return []
    about = known[0].about
    try:
        options = json.loads(Path(about["storageOptionsFile"]).read_text(encoding="utf-8"))
        return [Remote(str(url), options) for url in about["urls"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataProblem(f"the data source '{known[0].name}' cannot be read as a stream: {problem}") from None


def where(source: str | os.PathLike[str] | None) -> Path:
    """Return the file or folder that `source` names. Raises DataProblem if it does not exist."""
    known = sources()
    if source is None:
        if not known:
            raise DataProblem("no data: DATA_DIR is not set; name a file or a folder")
        path = known[0].path
    else:
        named = _called(source)
        path = named[0].path if named else Path(source)
    if not path.exists():
        names = ", ".join(item.name for item in known if item.name)
        raise DataProblem(f"{path} does not exist" + (f"; the data sources of this job are {names}" if names else ""))
    return path


def _called(name: str | os.PathLike[str]) -> list[Source]:
    """Return the data source of this name, in any Unicode form of its accents; empty if no source has it."""
    wanted = unicodedata.normalize("NFC", os.fspath(name))
    return [item for item in sources() if item.name and unicodedata.normalize("NFC", item.name) == wanted]


def files_below(place: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files with these suffixes: `place` itself, or the files below it, sorted by name, which is the same
    order in every process. Names that begin with a dot or an underscore are skipped."""
    if place.is_file():
        return [place] if place.suffix.lower() in suffixes else []
    found = []
    for folder, inner, names in os.walk(place, followlinks=True):
        inner[:] = [name for name in inner if not name.startswith((".", "_"))]
        found += [Path(folder, name) for name in names
                  if not name.startswith((".", "_")) and os.path.splitext(name)[1].lower() in suffixes]
    return sorted(found, key=lambda path: path.relative_to(place).parts)
