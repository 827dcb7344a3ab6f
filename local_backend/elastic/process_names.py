"""Names in a module of the user whose values belong to the process, such as its log folder and its devices."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

#: An assignment counts if its right side contains one of these names.
_MARKS = frozenset({
    "cuda", "is_available", "device_count", "current_device", "getpid", "LOG_DIR", "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES", "TASK_ID", "DLI_TASK_ID", "DLI_IS_DRIVER", "DLI_WORKER_NUMBER", "IS_TASK0",
})


def of_process(module: ModuleType) -> frozenset[str]:
    """Return the names of the module and of its classes that are assigned from values that differ between processes."""
    try:
        tree = ast.parse(Path(str(module.__file__)).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if node.value is not None and any(_is_mark(part) for part in ast.walk(node.value)):
            found.update(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return frozenset(found)


def _is_mark(node: ast.AST) -> bool:
    name = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
    return isinstance(name, str) and name in _MARKS
