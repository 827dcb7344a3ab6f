"""Paths of the user's data in a submission: in --cs-datastore-meta and --data-source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dlicmd.contract.data_sources import PATH_KEYS
from dlicmd.errors import SubmissionRefused, UsageProblem


def change_meta(text: str, change: Callable[[str], str]) -> str:
    """Return the value of --cs-datastore-meta with its `data_path` changed."""
    items = [item.partition("=") for item in text.split(",")]
    return ",".join(
        key + equals + (change(value) if key.strip() == "data_path" else value) for key, equals, value in items
    )


def change_source(source: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a data source of type fs with its paths changed. Return any other source unchanged, for example one on a
    volume."""
    location = source.get("location")
    if source.get("type") != "fs" or not isinstance(location, dict) or "volume" in location:
        return source
    changed = dict(location)
    for key in PATH_KEYS:
        value = location.get(key)
        if isinstance(value, str):
            paths = [path.strip() for path in value.split(",")]
            new = [change(path) for path in paths]
            changed[key] = value if new == paths else ",".join(new)
        elif isinstance(value, list):
            changed[key] = [change(item) if isinstance(item, str) else item for item in value]
    return {**source, "location": changed}


def named_in(meta: str, sources: Iterable[dict[str, Any]]) -> list[str]:
    """Return the paths that a value of --cs-datastore-meta and data sources name."""
    found: list[str] = []

    def collected(path: str) -> str:
        found.append(path)
        return path

    change_meta(meta, collected)
    for source in sources:
        change_source(source, collected)
    return found


@contextmanager
def nearer(paths: Iterable[str]) -> Iterator[None]:
    """Extend a refusal about one of the paths: did the user mean the path of this name in the current folder? For
    servers that read this machine's files."""
    try:
        yield
    except SubmissionRefused as problem:
        said = str(problem).removesuffix(".")
        here = [path for path in paths if f"'{path}'" in said and _is_bare(path) and os.path.exists(path)]
        if not here:
            raise
        raise SubmissionRefused(f"{said}; did you mean ./{here[0]}?", problem.status) from None


def _is_bare(path: str) -> bool:
    return bool(path) and not os.path.isabs(path) and not names_place(path)


def names_place(text: str) -> bool:
    """Return whether a path refers to the machine where it was typed: it starts with `./`, `../` or `~`."""
    return text in (".", "..") or text.startswith(("./", "../", "~"))


def local_path(text: str) -> str:
    """Return an absolute path for a path that refers to this machine, and any other path unchanged.

    A bare name is relative to DLI_DATA_FS. A path with a leading slash may be, too: the server decides. Raises
    UsageProblem when the path does not exist.
    """
    if not names_place(text):
        return text
    path = os.path.abspath(os.path.expanduser(text))
    if not os.path.exists(path):
        raise UsageProblem(f"the data path '{text}' does not exist")
    return path
