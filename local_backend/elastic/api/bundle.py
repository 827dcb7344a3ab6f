"""Builder of FABRIC_HOME: `libs/fabric.zip` and `tools/dli_utils`, for programs that look there for the engine.

The zip contains the engine, and the API of inference kernels. So a Python environment without this project, but with
torch, numpy and cloudpickle, can train, and any Python environment can serve. Each version of the zip is in a folder of
its own, and `libs/fabric.zip` is a link to the newest one: a running job keeps the version that it began with. This
module imports the standard library only.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

#: The folder of `local_backend`.
_PACKAGE = Path(__file__).resolve().parents[2]
#: emetrics is not here: scripts put the zip first on sys.path, and a copy of emetrics.py beside the script must win.
_FABRIC_MODULES = ("fabric_model.py", "callbacks.py", "redhareapi.py", "redhareapiversion.py")
_FABRIC_PACKAGES = ("pyedt", "fabric_data")
#: The oldest time that a zip can hold. With a fixed time, the same sources give the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


#: Versions of the zip that stay.
_KEPT = 10


def build(fabric_home: Path) -> None:
    """Create or refresh `fabric_home`. Write only files whose content differs, each one atomically. Remove all but the
    newest versions of the zip.

    Raises OSError.
    """
    content, libs = _zip(), fabric_home / "libs"
    version = libs / hashlib.sha256(content).hexdigest()[:16]
    _put(version / "fabric.zip", content)
    os.utime(version)
    _link(libs / "fabric.zip", f"{version.name}/fabric.zip")
    folders = sorted((one for one in libs.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
    for old in folders[:-_KEPT]:
        shutil.rmtree(old)
    _put(fabric_home / "tools" / "dli_utils" / "emetrics.py", (Path(__file__).parent / "emetrics.py").read_bytes())


def _members() -> Iterator[tuple[str, Path]]:
    """Yield (name in the zip, path of the source)."""
    yield "local_backend/__init__.py", _PACKAGE / "__init__.py"
    yield "local_backend/inference/__init__.py", _PACKAGE / "inference" / "__init__.py"
    for package in ("elastic", "inference/kernel"):
        for path in sorted((_PACKAGE / package).rglob("*.py")):
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


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    temporary.symlink_to(target)
    os.replace(temporary, path)


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
