"""Builder of FABRIC_HOME: `libs/fabric.zip` and `tools/dli_utils`, for programs that look there for the engine.

The zip contains the engine. So a Python environment without this project, but with torch, numpy and cloudpickle, can
train. This module imports the standard library only.
"""

from __future__ import annotations

import io
import os
import secrets
import zipfile
from collections.abc import Iterator
from pathlib import Path

#: The folder of `local_backend`.
_PACKAGE = Path(__file__).resolve().parents[2]
#: emetrics is not here: scripts put the zip first on sys.path, and a copy of emetrics.py beside the script must win.
_FABRIC_MODULES = ("fabric_model.py", "callbacks.py")
_FABRIC_PACKAGES = ("pyedt", "fabric_data")
#: The oldest time that a zip can hold. With a fixed time, the same sources give the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(fabric_home: Path) -> None:
    """Create or refresh `fabric_home`. Write only files whose content differs, each one atomically.

    Raises OSError.
    """
    _put(fabric_home / "libs" / "fabric.zip", _zip())
    _put(fabric_home / "tools" / "dli_utils" / "emetrics.py", (Path(__file__).parent / "emetrics.py").read_bytes())


def _members() -> Iterator[tuple[str, Path]]:
    """Yield (name in the zip, path of the source)."""
    yield "local_backend/__init__.py", _PACKAGE / "__init__.py"
    for path in sorted((_PACKAGE / "elastic").rglob("*.py")):
        yield path.relative_to(_PACKAGE.parent).as_posix(), path
    for name in _FABRIC_MODULES:
        yield name, _fabric_source(name)
    for package in _FABRIC_PACKAGES:
        for path in sorted(_fabric_source(package).glob("*.py")):
            yield f"{package}/{path.name}", path


def _fabric_source(name: str) -> Path:
    """Return the path of a module or package: top-level once installed, in local_backend/fabric in a source tree."""
    in_tree = _PACKAGE / "fabric" / name
    return in_tree if in_tree.exists() else _PACKAGE.parent / name


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in _members():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _put(path: Path, data: bytes) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
