"""Resource plans: read from a YAML file, shown as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlicmd.console import inert
from dlicmd.errors import UsageProblem
from dlicmd.render import Output, emit, emit_value

#: Keys of a node that are not limits.
_STRUCTURE = frozenset({"id", "pid", "childTreeDto"})
_LARGEST = 1 << 20


def read_plans(name: str) -> Any:
    """The document in a YAML file. Raises UsageProblem when there is none."""
    import yaml

    try:
        with open(name, "rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as problem:
        raise UsageProblem(f"--rp-apply {name}: {problem.strerror}") from None
    if len(text) > _LARGEST:
        raise UsageProblem(f"--rp-apply {name}: it is larger than {_LARGEST >> 20} MiB")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise UsageProblem(f"--rp-apply {Path(name).name}: this is not YAML{where}") from None


def show_plans(tree: dict[str, Any], output: Output) -> None:
    """Print the tree."""
    if output.is_data:
        emit_value(tree, output)
    else:
        emit(inert("\n".join(_lines(tree))))


def _lines(node: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    limits = [f"{key}={_short(value)}" for key, value in node.items() if key not in _STRUCTURE]
    yield indent + "  ".join([str(node.get("id", "")), *limits])
    children = node.get("childTreeDto")
    for child in children if isinstance(children, list) else ():
        if isinstance(child, Mapping):
            yield from _lines(child, indent + "  ")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
