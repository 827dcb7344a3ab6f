"""Reads the words of a submission: the `args` text, the `data` part, and what of them may be shown again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from dlicmd.contract import slips, strict_json, wire
from dlicmd.contract.argv import ArgvError, CommandLine, join_args, parse_argv, split_args
from dlicmd.contract.data_sources import MOST
from dlicmd.contract.secret import masked_text
from local_backend.errors import Invalid

_MAX_WORDS = 10_000
#: Maximum characters of the command line: twice what a program can be started with (check.py), because data sources may
#: be in it, too. And the maximum number of keys of the data part.
_MAX_LINE = 1 << 20
_MAX_KEYS = 1000
_OPTION = "--data-source"
_KEYS = (wire.ARGS, wire.ARGV, wire.DATA_SOURCE, wire.HARDWARE_SPEC, wire.STAGED_FOLDER)
_STAGED = re.compile("[0-9a-f]{32}")


@dataclass
class Asked:
    """A submission as the client wrote it. `shown` is `args` without secrets, for every user who may see the exec.
    `staged` is the name of a staged folder."""

    line: CommandLine
    shown: str
    data_source: list[Any] | None = None
    hardware: dict[str, Any] = field(default_factory=dict)
    staged: str | None = None


def read(args: str | None, data: str | None) -> Asked:
    """Parse the `args` of the query and the text of the `data` part. If the query has no `args`, those in `data` count.

    Raises Invalid.
    """
    extra = _json_object(data) if data and data.strip() else {}
    _check_keys(extra)
    text = args if args and args.strip() else extra.get(wire.ARGS, args)
    if text is not None and not isinstance(text, str):
        raise Invalid("submission.data_part", f"'{wire.ARGS}' in the data part is not a string")
    words = _words(extra.get(wire.ARGV), text)
    try:
        line = parse_argv(words, sent=True)
    except ArgvError as problem:
        raise Invalid("submission.command", str(problem)) from None
    hardware = extra.get(wire.HARDWARE_SPEC) or {}
    if not isinstance(hardware, dict):
        raise Invalid("submission.data_part", f"'{wire.HARDWARE_SPEC}' is not a JSON object")
    staged = extra.get(wire.STAGED_FOLDER)
    if staged is not None and not (isinstance(staged, str) and _STAGED.fullmatch(staged)):
        raise Invalid("submission.data_part", f"'{wire.STAGED_FOLDER}' in the data part is not 32 hexadecimal digits")
    shown = masked_text(join_args(words) if text is None else text, words)
    return Asked(line, shown, _all_sources(extra.get(wire.DATA_SOURCE), line.many(_OPTION)), hardware, staged)


def _check_keys(extra: dict[str, Any]) -> None:
    """Raise Invalid for a key that looks like a misspelled key of this API. Keys of other products are ignored."""
    if len(extra) > _MAX_KEYS:
        raise Invalid("submission.data_part", f"the data part has more than {_MAX_KEYS} keys")
    for key in extra:
        near = slips.meant(key, _KEYS)
        if near is not None:
            raise Invalid("submission.data_part", f"unknown key '{key[:80]}' in the data part; did you mean '{near}'?")


def _words(argv: Any, text: str | None) -> list[str]:
    if argv is None:
        if text is None or not text.strip():
            raise Invalid(
                "submission.command",
                "the submission has no command line; send 'args' in the query or in the data part",
            )
        _check_length(len(text))
        words = split_args(text)
    elif isinstance(argv, list) and all(isinstance(word, str) for word in argv):
        _check_length(sum(map(len, argv)))
        words = argv
    else:
        raise Invalid("submission.command", f"'{wire.ARGV}' in the data part is not a list of strings")
    if len(words) > _MAX_WORDS:
        raise Invalid("submission.command", f"the command line has more than {_MAX_WORDS} words")
    if any("\0" in word or not strict_json.is_unicode(word) for word in words):
        raise Invalid("submission.command", "the command line contains a NUL character or invalid Unicode")
    return words


def _check_length(length: int) -> None:
    if length > _MAX_LINE:
        raise Invalid("submission.too_long", f"the command line has {length:,} characters; the limit is {_MAX_LINE:,}. "
                      "Put long values into files")


def _all_sources(given: Any, options: list[str]) -> list[Any] | None:
    """Return the data sources of the data part, then those of the command line: some clients leave --data-source=...
    there. A source that is in both counts once. Return None if neither has any."""
    lists = [] if given is None else [_sources(given, f"'{wire.DATA_SOURCE}'")]
    lists += [_sources(text, _OPTION) for text in options]
    found: list[Any] = []
    for number, sources in enumerate(lists):
        if len(sources) <= MOST:
            found += [source for source in sources if number == 0 or source not in found]
        if max(len(sources), len(found)) > MOST:
            raise Invalid("submission.data_source", f"too many data sources; the limit is {MOST}")
    return found if lists else None


def _sources(value: Any, what: str) -> list[Any]:
    """Return a list of data sources from a list, from JSON text, or from one source alone."""
    if isinstance(value, str):
        value = _json(value, what, "submission.data_source")
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise Invalid("submission.data_source", f"{what} is not a JSON list")
    return value


def _json_object(text: str) -> dict[str, Any]:
    value = _json(text, "the data part", "submission.data_part")
    if not isinstance(value, dict):
        raise Invalid("submission.data_part", "the data part is not a JSON object")
    return value


def _json(text: str, what: str, code: str) -> Any:
    try:
        return strict_json.read(text)
    except ValueError as problem:
        raise Invalid(code, f"{what} {problem}") from None
