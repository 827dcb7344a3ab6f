"""The data of a submission: its sources as JSON, and the paths in them and in --cs-datastore-meta."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dlicmd.contract import strict_json
from dlicmd.contract.data_sources import PATH_KEYS, SCHEMA, beyond_schema, explained
from dlicmd.sdk.errors import SubmissionRefused, UsageProblem


def one_or_more(text: str, option: str) -> list[Any]:
    """Return the data sources in the JSON text of an option that also takes a single source. Raises UsageProblem."""
    found = read_json(text, option)
    sources = found if isinstance(found, list) else [found]
    check_sources(sources, option)
    return sources


def read_json(text: str, option: str) -> Any:
    """Return the JSON value of an option. Raises UsageProblem."""
    try:
        return strict_json.read(text)
    except ValueError as problem:
        raise UsageProblem(f"{option} {problem}") from None


def check_sources(sources: Sequence[Any], option: str) -> None:
    """Raise UsageProblem, which names the option, unless these are valid data sources."""
    problem = beyond_schema(list(sources)) or _fault(list(sources))
    if problem is not None:
        raise UsageProblem(f"{option}: {problem}")


def _fault(sources: list[Any]) -> str | None:
    """Return the error that the schema finds, or None."""
    try:
        # These imports take half a second on a slow machine. Only users of this option pay for them.
        from jsonschema import Draft202012Validator
    except ImportError:
        # The client file that servers hand out lacks jsonschema, which needs compiled code. The server checks the same
        # schema.
        wrong = [number for number, source in enumerate(sources, 1) if not isinstance(source, dict)]
        return f"data source {wrong[0]} must be a JSON object" if wrong else None
    return next(map(explained, Draft202012Validator(SCHEMA).iter_errors(sources)), None)


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
