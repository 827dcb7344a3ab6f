"""Import of the files that a user put beside a model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from local_backend.inference.kernel.problems import KernelProblem


def import_file(path: Path) -> ModuleType:
    """Import a file by its name without suffix, with its folder on sys.path.

    Raises KernelProblem if another module has this name, and what the file raises.
    """
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    found = importlib.import_module(path.stem)
    if Path(found.__file__ or "").resolve() != path.resolve():
        raise KernelProblem(f"{path} cannot be imported, because {found.__file__} has the same name. Rename the file.")
    return found
