"""What `GET /ui/tools/dlicmd.py` hands out: dlicmd and its libraries as one file, which any Python runs.

It is a zip application, made of what this server runs itself, when somebody asks for it first; the same installation
makes the same bytes. What is compiled stays out, for it would tie the file to one platform. That is why jsonschema is
not in it: data sources are then checked by the server alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Package → the distribution that brings it. All that the client imports, but for what is compiled or optional.
_PACKAGES = {
    "certifi": "certifi", "charset_normalizer": "charset-normalizer", "click": "click", "dlicmd": "dlicmd",
    "idna": "idna", "pathspec": "pathspec", "platformdirs": "platformdirs", "requests": "requests", "rich": "rich",
    "urllib3": "urllib3", "yaml": "PyYAML",
}
#: Of a package: its modules, and the authorities that certifi knows.
_SUFFIXES = (".py", ".pem")
#: Folders of a package that the client does without: the samples are for its own machine.
_LEFT_OUT = {"samples", "__pycache__"}
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|AUTHORS)[^/]*", re.IGNORECASE)
#: The oldest Python that dlicmd itself runs with.
_OLDEST = (3, 10)
#: Read by Pythons of any age, before they meet a word that they do not know.
_MAIN = """\
import sys

if sys.version_info < ({major}, {minor}):
    sys.exit("dlicmd: this file needs Python {major}.{minor} or later; %s is %d.%d"
             % (sys.executable, sys.version_info[0], sys.version_info[1]))

from dlicmd.cli import main

sys.exit(main())
"""

_making = threading.Lock()


class ClientFile(NamedTuple):
    """The file, and its tag for HTTP."""

    content: bytes
    etag: str


def client_file() -> ClientFile:
    """The file; made once, and kept. Raises OSError when a part of the installation cannot be read."""
    with _making:
        return _made()


@functools.cache
def _made() -> ClientFile:
    major, minor = max([_OLDEST, *map(_needs, _PACKAGES.values())])
    members = {"__main__.py": _MAIN.format(major=major, minor=minor).encode()}
    for package, distribution in _PACKAGES.items():
        members.update(_modules(package))
        members.update(_licences(distribution))
    content = _packed(members)
    return ClientFile(content, f'"{hashlib.sha256(content).hexdigest()}"')


def _packed(members: dict[str, bytes]) -> bytes:
    """A zip that says how it is run; nothing of when and where it was made is in it."""
    file = io.BytesIO()
    file.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            member = zipfile.ZipInfo(name)
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, members[name], zipfile.ZIP_DEFLATED, 9)
    return file.getvalue()


def _modules(package: str) -> Iterator[tuple[str, bytes]]:
    """The files of a package, as Python finds it here."""
    found = importlib.util.find_spec(package)
    for folder in map(Path, (found and found.submodule_search_locations) or ()):
        for path in folder.rglob("*"):
            inner = path.relative_to(folder)
            if path.suffix in _SUFFIXES and not _LEFT_OUT.intersection(inner.parts):
                yield f"{package}/{inner.as_posix()}", path.read_bytes()


def _licences(distribution: str) -> Iterator[tuple[str, bytes]]:
    """What whoever passes a library on has to pass on with it."""
    for file in _files(distribution):
        top, *inner = file.parts
        path = Path(str(file.locate()))
        # Images of containers come without them at times.
        if top.endswith(".dist-info") and _LICENCE.fullmatch(file.name) and path.is_file():
            yield "/".join(("licences", top.removesuffix(".dist-info"), *inner)), path.read_bytes()


def _files(distribution: str) -> list[importlib.metadata.PackagePath]:
    try:
        return importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # run from a clone
        return []


def _needs(distribution: str) -> tuple[int, int]:
    """The oldest Python that a distribution says it runs with; (0, 0) when it says nothing."""
    try:
        said = str(importlib.metadata.metadata(distribution)["Requires-Python"])
    except importlib.metadata.PackageNotFoundError:
        return 0, 0
    found = re.search(r">=\s*([0-9]+)\.([0-9]+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)
