"""The value of `--data-source`, read and checked before anything is packed or sent."""

from __future__ import annotations

from typing import Any

from dlicmd.console import info
from dlicmd.contract import strict_json
from dlicmd.contract.argv import CommandLine
from dlicmd.contract.data_sources import SCHEMA, beyond_schema, explained
from dlicmd.errors import UsageProblem

OPTION, META = "--data-source", "--cs-datastore-meta"
_EXAMPLE = '[{"type": "fs", "location": {"paths": "mnist"}}]'


def data_sources(line: CommandLine) -> list[Any]:
    """Return the data sources of all `--data-source` options, in order. Report when another option has no effect
    beside them. Raises UsageProblem."""
    sources: list[Any] = []
    for text in line.many(OPTION):
        found = _json(text, OPTION)
        if not isinstance(found, list):
            raise UsageProblem(f"{OPTION} must be a list, such as {_EXAMPLE}")
        sources += found
    if sources:
        _check(sources, OPTION)
        if line.text(META) is not None:
            info(f"{META} has no effect together with {OPTION}")
    elif line.many(OPTION):
        info(f"{OPTION} names no data and is ignored: DATA_DIR "
             + ("is the data folder of the server" if line.text(META) is None else f"comes from {META}"))
    return sources


def one_or_more(text: str, option: str) -> list[Any]:
    """Return the data sources in the JSON text of an option that also takes a single source. Raises UsageProblem."""
    found = _json(text, option)
    sources = found if isinstance(found, list) else [found]
    _check(sources, option)
    return sources


def _json(text: str, option: str) -> Any:
    try:
        return strict_json.read(text)
    except ValueError as problem:
        raise UsageProblem(f"{option} {problem}") from None


def _check(sources: list[Any], option: str) -> None:
    problem = beyond_schema(sources) or _fault(sources)
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
