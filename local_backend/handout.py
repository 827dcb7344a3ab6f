"""The file that `GET /ui/tools/dlicmd.py` returns: dlicmd and its libraries in one file, which any Python can run. A
copy of it with the name `dlim` or `dlim.py` is dlim.

The file is a zip application, made from the packages that this server itself runs. The first request makes it. The same
installation makes the same bytes. Compiled modules are left out, because they would tie the file to one platform. For
this reason the file has no jsonschema: only the server then checks data sources.
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

#: Package → the distribution that contains it. These are all packages that the client imports, except compiled and
#: optional ones.
_PACKAGES = {
    "certifi": "certifi", "charset_normalizer": "charset-normalizer", "click": "click", "dlicmd": "dlicmd",
    "idna": "idna", "pathspec": "pathspec", "platformdirs": "platformdirs", "requests": "requests", "rich": "rich",
    "urllib3": "urllib3", "yaml": "PyYAML",
}
#: Suffixes of the files to include: modules, and the certificate authorities of certifi.
_SUFFIXES = (".py", ".pem")
#: Folders to leave out. The client does not need the samples: they are for the machine that they are installed on.
_LEFT_OUT = {"samples", "__pycache__"}
_LICENCE = re.compile(r"(LICEN[CS]E|NOTICE|COPYING|AUTHORS)[^/]*", re.IGNORECASE)
#: Oldest Python version that dlicmd itself supports.
_OLDEST = (3, 10)
#: Pythons of any age must be able to read this, so that an old one prints the message, not a syntax error.
_MAIN = """\
import sys

if sys.version_info < ({major}, {minor}):
    sys.exit("dlicmd: this file needs Python {major}.{minor} or later; %s is %d.%d"
             % (sys.executable, sys.version_info[0], sys.version_info[1]))

if sys.argv[0].replace("\\\\", "/").rpartition("/")[2].partition(".")[0] == "dlim":
    from dlicmd.dlim import main
else:
    from dlicmd.cli import main

sys.exit(main())
"""

_making = threading.Lock()


class ClientFile(NamedTuple):
    """The client file and its entity tag for HTTP."""

    content: bytes
    etag: str


def client_file() -> ClientFile:
    """Return the client file. The first call makes it; later calls reuse it. Raises OSError when a part of the
    installation cannot be read."""
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
    """Return the members as an executable zip file. The bytes do not depend on the time or place of the call."""
    file = io.BytesIO()
    file.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            member = zipfile.ZipInfo(name)
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, members[name], zipfile.ZIP_DEFLATED, 9)
    return file.getvalue()


def _modules(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each file of a package that Python finds here."""
    found = importlib.util.find_spec(package)
    for folder in map(Path, (found and found.submodule_search_locations) or ()):
        for path in folder.rglob("*"):
            inner = path.relative_to(folder)
            if path.suffix in _SUFFIXES and not _LEFT_OUT.intersection(inner.parts):
                yield f"{package}/{inner.as_posix()}", path.read_bytes()


def _licences(distribution: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each license file of a distribution. Copies of a library must include these
    files."""
    for file in _files(distribution):
        top, *inner = file.parts
        path = Path(str(file.locate()))
        # Container images sometimes lack these files.
        if top.endswith(".dist-info") and _LICENCE.fullmatch(file.name) and path.is_file():
            yield "/".join(("licences", top.removesuffix(".dist-info"), *inner)), path.read_bytes()


def _files(distribution: str) -> list[importlib.metadata.PackagePath]:
    try:
        return importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:  # dlicmd runs from a clone
        return []


def _needs(distribution: str) -> tuple[int, int]:
    """Return the oldest Python version that a distribution declares to support; (0, 0) if it declares none."""
    try:
        said = str(importlib.metadata.metadata(distribution)["Requires-Python"])
    except importlib.metadata.PackageNotFoundError:
        return 0, 0
    found = re.search(r">=\s*([0-9]+)\.([0-9]+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)
