"""Finds the Python environment that a job names, by name or by path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from local_backend.errors import Invalid

#: WMLA's name for the environment of the platform itself. Scripts name it when they need no special environment.
DEFAULT_ENVIRONMENT = "dlipy3"
_USUAL_HOMES = ("~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "/opt/conda", "/opt/anaconda3")


def find(name: str | None, conda_home: str | None) -> str | None:
    """Return the directory of the environment, absolute. Return None for the backend's own environment: the job then
    runs in the Python environment of its user.

    Raises Invalid; the message lists the searched folders.
    """
    if name is None:
        return None
    if not name or any(ord(character) < 32 for character in name):
        raise Invalid("submission.environment", "--conda-env-name is empty or contains control characters")
    if os.sep in name:
        path = _expanded(name)
        if path.is_absolute() and _is_environment(path):
            return _unless_own(path)
        raise Invalid(
            "submission.environment",
            f"--conda-env-name: no Python environment in {name} (bin/python is missing)",
        )
    if name in {".", ".."}:
        raise Invalid("submission.environment", f"--conda-env-name: '{name}' is not a valid environment name")
    homes = _homes(conda_home)
    for home in homes:
        for path in (home / "envs" / name, *([home] if name in {"base", home.name} else [])):
            if _is_environment(path):
                return _unless_own(path)
    if name == DEFAULT_ENVIRONMENT:
        return None
    looked = ", ".join(str(home / "envs") for home in homes) or "no conda installation found"
    raise Invalid("submission.environment", f"--conda-env-name: environment '{name}' not found (searched: {looked})")


def _unless_own(path: Path) -> str | None:
    return None if path.samefile(sys.prefix) else str(path)


def _is_environment(path: Path) -> bool:
    return os.access(path / "bin" / "python", os.X_OK)


def _expanded(text: str) -> Path:
    """Return a path with the home directory in place of `~`. Raises Invalid."""
    try:
        if "\0" not in text:
            return Path(text).expanduser()
    except RuntimeError:  # no such account
        pass
    raise Invalid("submission.environment", f"--conda-home, --conda-env-name: {text[:200]!r} is not a valid path")


def _homes(conda_home: str | None) -> list[Path]:
    """Return the folders where conda may be installed: the one that the job names, or else those that the server's
    environment names, and the usual ones."""
    if conda_home:
        return [_expanded(conda_home)]
    named = [os.environ.get("DLI_CONDA_HOME"), _above_envs(os.environ.get("CONDA_PREFIX")), _above_envs(sys.prefix)]
    usual = [str(path) for text in _USUAL_HOMES if (path := Path(text).expanduser()).is_dir()]
    return [Path(home) for home in dict.fromkeys([*filter(None, named), *usual])]


def _above_envs(prefix: str | None) -> str | None:
    """Return the conda installation that an environment belongs to; None if there is none."""
    if not prefix:
        return None
    path = Path(prefix)
    if path.parent.name == "envs":
        return str(path.parent.parent)
    return prefix if (path / "conda-meta").is_dir() else None
