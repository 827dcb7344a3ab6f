"""Installed search algorithms: their files, and what is known of them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from local_backend import files
from local_backend.errors import Invalid
from local_backend.fields import NAME, Fields, shown
from local_backend.hypersearch.definition import BUILT_IN
from local_backend.hypersearch.literal import value_of
from local_backend.settings import Settings
from local_backend.submit import conda
from local_backend.submit.unpack import unpack

#: The file of a plugin.
MAIN = "optimizer.py"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_KIND = "USER_PLUGIN"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Most files and bytes of a plugin.
_FILES, _BYTES = 1000, 100 * 2**20


def _refused(sentence: str) -> Invalid:
    return Invalid("search.plugin", sentence)


@dataclass(frozen=True)
class PluginRequest:
    """What `data` of an installation asks for, checked."""

    name: str
    #: Folder on the server's machine; None for an upload.
    path: str | None
    conda_home: str | None
    conda_env: str | None
    remote: bool
    #: None if the request does not say.
    level: str | None

    @classmethod
    def parse(cls, text: str) -> PluginRequest:
        """Return the request of a text, JSON or a Python literal. Raises Invalid with the code search.plugin."""
        top = Fields(value_of(text, "the description of the algorithm", _refused), "the description of the algorithm",
                     _refused)
        name = top.required("name", most=NAME).strip()
        if not _NAME.fullmatch(name):
            raise top.refuse("name", f"must begin with a letter or digit, and have at most 64 letters, digits, '.', "
                                     f"'_' and '-', but it is {shown(name)}")
        if name.lower() in {one.lower() for one in BUILT_IN}:
            raise top.refuse("name", f"must not be the name of a built-in algorithm, but it is {shown(name)}")
        level = top.word("logLevel", LEVELS) if top.get("logLevel") is not None else None
        env, home = top.text("condaEnv", most=NAME) or None, top.text("condaHome") or None
        try:
            conda.find(env, home)
        except Invalid as problem:
            raise top.refuse("condaEnv", f"cannot be used: {problem}") from None
        return cls(name, top.text("path") or None, home, env, top.switch("remoteExec"), level)

    def described(self, folder: Path, creator: str, created: str) -> dict[str, Any]:
        """Return the description of the installed algorithm, as answers have it."""
        found: dict[str, Any] = {
            "name": self.name, "path": str(folder),
            "condaHome": self.conda_home or os.environ.get("DLI_CONDA_HOME", ""),
            "condaEnv": self.conda_env or conda.DEFAULT_ENVIRONMENT, "creator": creator, "createtime": created,
            "type": _KIND, "remoteExec": self.remote,
        }
        return found if self.level is None else found | {"logLevel": self.level}


def built_in() -> list[dict[str, Any]]:
    """Return the descriptions of the built-in algorithms."""
    return [{"name": name, "type": "BUILD_IN", "remoteExec": False} for name in BUILT_IN]


def install(settings: Settings, request: PluginRequest, upload: Path | None) -> Path:
    """Put the files of a plugin into its folder of the home; return the folder. They are durable when this returns.

    `upload` is a tar archive, with or without gzip. Raises Invalid, also when the folder exists, and StorageFailed.
    """
    target = settings.paths.plugin(request.name)
    if target.exists():
        raise Invalid("search.plugin", f"an algorithm with the name {shown(request.name)} is installed")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as top:
        folder = Path(top) / "files"
        folder.mkdir(0o700)
        if upload is not None:
            unpack(upload, folder, replace(settings.limits, unpacked_bytes=_BYTES, unpacked_files=_FILES))
        elif request.path is not None:
            _copy(_below(settings.plugin_roots, request.path), folder)
        else:
            raise _refused("the description of the algorithm: path is required without an uploaded archive")
        if not (folder / MAIN).is_file():
            raise _refused(f"an algorithm needs the file {MAIN} at the top of its archive or folder; found: "
                           f"{', '.join(sorted(os.listdir(folder))[:10]) or 'nothing'}")
        try:
            os.rename(folder, target)
        except OSError:
            raise Invalid("search.plugin", f"an algorithm with the name {shown(request.name)} is installed") from None
        files.sync_directory(target.parent)
    return target


def delete(settings: Settings, name: str) -> None:
    """Remove the files of a plugin, if there are any."""
    if _NAME.fullmatch(name):
        shutil.rmtree(settings.paths.plugin(name), ignore_errors=True)


def _below(roots: Sequence[str], path: str) -> Path:
    """Return the real folder of a path that lies below one of the roots. Raises Invalid."""
    real = os.path.realpath(path) if path.isprintable() else ""
    if not real or not os.path.isabs(path) or not any(
            os.path.commonpath([real, os.path.realpath(root)]) == os.path.realpath(root) for root in roots):
        allowed = ", ".join(roots) or "none; an administrator sets DLI_PLUGIN_ROOTS"
        raise _refused(f"path {shown(path)} is not below a folder from which this server installs algorithms "
                       f"({allowed}); upload an archive instead")
    if not os.path.isdir(real):
        raise _refused(f"path {shown(path)} is not a folder on the machine of the server")
    return Path(real)


def _copy(source: Path, target: Path) -> None:
    """Copy the regular files of a folder. Links are left out, because they could lead anywhere."""
    count = size = 0
    for top, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name != "__pycache__" and not os.path.islink(os.path.join(top, name))]
        inside = target / Path(top).relative_to(source)
        inside.mkdir(exist_ok=True)
        for name in names:
            path = Path(top) / name
            if path.is_symlink() or not path.is_file():
                continue
            count, size = count + 1, size + path.stat().st_size
            if count > _FILES or size > _BYTES:
                raise _refused(f"the folder has more than {_FILES} files or {_BYTES} bytes")
            with open(path, "rb") as read, open(inside / name, "xb") as written:
                shutil.copyfileobj(read, written)
                written.flush()
                os.fsync(written.fileno())
        files.sync_directory(inside)


def interpreter_of(description: Mapping[str, Any]) -> str | None:
    """Return the Python of an installed algorithm; None for that of the server. Raises Invalid."""
    env = description["condaEnv"]
    found = conda.find(None if env == conda.DEFAULT_ENVIRONMENT else env, description["condaHome"] or None)
    return None if found is None else str(Path(found) / "bin" / "python")
