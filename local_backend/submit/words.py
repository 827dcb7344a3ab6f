"""Reads what a submission says: the `args` text, the `data` part, and what of them may be shown again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, CommandLine, join_args, parse_argv, split_args
from dlicmd.contract.secret import masked_text
from local_backend.submit.errors import BadSubmission

_MAX_WORDS = 10_000


@dataclass
class Asked:
    """A submission as the client wrote it: `shown` is `args` without secrets, for everybody who may see the exec."""

    line: CommandLine
    shown: str
    data_source: list[Any] | None = None
    hardware: dict[str, Any] = field(default_factory=dict)


def read(args: str | None, data: str | None) -> Asked:
    """Parse the `args` of the query and the text of the `data` part; `args` within `data` counts when there is none.

    Raises BadSubmission.
    """
    extra = _json_object(data) if data and data.strip() else {}
    text = args if args and args.strip() else extra.get(wire.ARGS, args)
    if text is not None and not isinstance(text, str):
        raise BadSubmission(f"'{wire.ARGS}' in the data part is not a text")
    words = _words(extra.get(wire.ARGV), text)
    try:
        line = parse_argv(words, sent=True)
    except ArgvError as problem:
        raise BadSubmission(str(problem)) from None
    hardware = extra.get(wire.HARDWARE_SPEC) or {}
    if not isinstance(hardware, dict):
        raise BadSubmission(f"'{wire.HARDWARE_SPEC}' is not a JSON object")
    return Asked(line, masked_text(join_args(words) if text is None else text, words), _sources(extra), hardware)


def _words(argv: Any, text: str | None) -> list[str]:
    if argv is None:
        if text is None or not text.strip():
            raise BadSubmission("the submission has no 'args': the command line, in the query or in the data part")
        words = split_args(text)
    elif isinstance(argv, list) and all(isinstance(word, str) for word in argv):
        words = argv
    else:
        raise BadSubmission(f"'{wire.ARGV}' in the data part is not a list of texts")
    if len(words) > _MAX_WORDS:
        raise BadSubmission(f"the command line has more than {_MAX_WORDS} words")
    if any("\0" in word or _has_surrogate(word) for word in words):
        raise BadSubmission("the command line contains a NUL or is not valid Unicode")
    return words


def _has_surrogate(word: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in word)


def _sources(extra: dict[str, Any]) -> list[Any] | None:
    sources = extra.get(wire.DATA_SOURCE)
    if sources is None:
        return None
    if isinstance(sources, dict):
        sources = [sources]
    if not isinstance(sources, list):
        raise BadSubmission(f"'{wire.DATA_SOURCE}' is not a JSON list")
    if len(sources) > 100:
        raise BadSubmission("more than 100 data sources")
    return sources


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise BadSubmission("the data part is nested too deeply") from None
    except ValueError as problem:
        raise BadSubmission(f"the data part is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise BadSubmission("the data part is not a JSON object")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")
