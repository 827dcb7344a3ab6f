"""Formats of answers: as people read them, as JSON, as JSON lines, as YAML, or as columns that the user selects."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dlicmd.cli.manner import Manner
from dlicmd.cli.show.recorded import RecordedTable
from dlicmd.cli.show.table import MISSING, ranked, table, terminal_width, usual
from dlicmd.contract import wire
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.records import Record

_CUSTOM = "custom-columns="


class Output(NamedTuple):
    """The format that `-o` selects: `form` is "" (the command's default), "table", "json", "jsonl", "yaml" or
    "columns". For "columns", `columns` has their names. `manner` is how dlicmd was called."""

    form: str = ""
    columns: tuple[str, ...] = ()
    manner: Manner = Manner.TERMINAL

    @classmethod
    def parse(cls, text: str | None, manner: Manner = Manner.TERMINAL) -> Output:
        """Return the format that `text` names. The original client knows `json` and `custom-columns=`, and prints its
        tables for any other text. Raises UsageProblem when there is no such format."""
        if text is None:
            return cls(manner=manner)
        if manner is Manner.ORIGINAL and text != "json" and not text.startswith(_CUSTOM):
            return cls(manner=manner)
        if text in ("table", "json", "jsonl", "yaml"):
            return cls(text, manner=manner)
        columns = tuple(name.strip() for name in text.removeprefix(_CUSTOM).split(","))
        if not text.startswith(_CUSTOM) or not all(columns):
            raise UsageProblem(f"-o: '{text}' is not one of table, json, jsonl, yaml or custom-columns=COLUMN,...")
        return cls("columns", columns, manner)

    @property
    def is_data(self) -> bool:
        """Whether a program reads standard output, so that no other text may be on it."""
        return self.form in ("json", "jsonl", "yaml")

    @property
    def is_original(self) -> bool:
        """Whether streams, exit codes and all layouts are those of the original client."""
        return self.manner is Manner.ORIGINAL

    def own(self, text: str) -> str:
        """Return a sentence of ours; nothing where the original client printed only the text of the server."""
        return "" if self.is_original else text

    @property
    def is_recorded(self) -> bool:
        """Whether a table has the layout of the original client."""
        return self.is_original or (self.manner is Manner.PIPED and self.form == "")


def emit(text: str) -> None:
    """Print a result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def emit_value(value: Any, output: Output, indent: int = 2) -> None:
    """Print a JSON value. `output` may select YAML, or JSON lines with one object each; the default is JSON with this
    indent."""
    value = _plain(value)
    if output.form == "yaml":
        import yaml  # only for this form

        emit(yaml.safe_dump(value, sort_keys=False, allow_unicode=False).rstrip("\n"))
    elif output.form == "jsonl":
        for item in value if isinstance(value, list | tuple) else [value]:
            emit(json.dumps(item))
    else:
        emit(json.dumps(value, indent=indent))


def _plain(value: Any) -> Any:
    """Return an object of the SDK, or a list of such objects, as plain JSON values."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.json if isinstance(value, Record) else value


def emit_said(text: str, output: Output, otherwise: str = "", indent: int = 2) -> None:
    """Print the server's text, or `otherwise` if that is empty; JSON with this indent. For programs, a text that is not
    JSON becomes the value of the key `message`."""
    said = text.strip() or otherwise
    try:
        value = json.loads(said)
    except (ValueError, RecursionError):
        if not output.is_data:
            emit(inert(said)) if said else None
            return
        value = {wire.MESSAGE: said}
    emit_value(value, output, indent)


def emit_chunks(chunks: Iterable[bytes]) -> None:
    """Print text that arrives in pieces: byte for byte into a file or pipe, inert on a terminal. The output ends with
    a newline."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    raw = None if sys.stdout.isatty() else getattr(sys.stdout, "buffer", None)
    last = b"\n"
    for chunk in chunks:
        if raw is not None:
            raw.write(chunk)
        else:
            sys.stdout.write(inert(decoder.decode(chunk)))
        last = chunk[-1:] or last
    if last != b"\n":
        sys.stdout.flush()
        sys.stdout.write("\n")
    sys.stdout.flush()


def show_rows(
    items: Sequence[Mapping[str, Any]], output: Output, columns: Sequence[str],
    cell: Callable[[Mapping[str, Any], str], str], recorded: RecordedTable | None = None,
) -> None:
    """Print a list of items as `output` says: unchanged as data, or in a table of the selected columns, else of
    `columns`. `recorded` is the table of the original client, if it has one."""
    if output.is_data:
        emit_value(items, output)
    elif recorded is not None and output.is_recorded:
        emit(recorded.text(items, output.columns))
    elif not items:
        emit("No result found")
    else:
        show_columns(items, output.columns or columns, cell, asked_for=bool(output.columns))


def show_columns(
    items: Sequence[Mapping[str, Any]], columns: Sequence[str], cell: Callable[[Mapping[str, Any], str], str],
    asked_for: bool = True,
) -> None:
    """Print a table of items. If the user selected the columns (`asked_for`), report the columns that no item has."""
    rows = [{name: cell(item, name) for name in columns} for item in items]
    if not asked_for and sys.stdout.isatty():
        emit("\n".join(ranked(*usual(rows, columns), terminal_width())))
    else:
        emit(table(rows, columns))
    unknown = [name for name in columns if asked_for and rows and all(row[name] == MISSING for row in rows)]
    if unknown:
        near = ", ".join(_near(unknown, {key for item in items for key in item}))
        info(f"no row has the column {', '.join(unknown)}" + (f"; did you mean {near}?" if near else ""))


def _near(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the known names that the unknown ones may mean."""
    import difflib  # only for an unknown column

    return [near for name in names for near in difflib.get_close_matches(name, known, n=1, cutoff=0.75)]


def scalar(value: Any) -> str:
    """Return a JSON value as the text of a table cell."""
    if value is None:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value)
