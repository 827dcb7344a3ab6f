"""`--data-preview`: the contents of a data source, and whether a job could read them, before a submission. The verb
`data` also uploads data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.cli.show.table import grid
from dlicmd.contract import wire
from dlicmd.contract.data_sources import CONNECTED, CONNECTION, FS, LOCATION, NAME, PATH, TYPE
from dlicmd.contract.exits import Exit
from dlicmd.contract.sizes import show_size
from dlicmd.sdk.data import change_source, local_path, named_in, nearer, one_or_more
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.messages import file_count, inert, info

OPTION = "--data-preview"
#: Options of the verb `data`.
TO, VOLUME, REPLACE = "--to", "--volume", "--replace"


def preview(session: Session) -> int:
    """Print the contents of the sources. Return the exit code: FAILED when a source cannot be read. With `--to`, upload
    the data instead."""
    if session.line.text(TO) is not None:
        return _upload(session)
    for option in (VOLUME, REPLACE):
        if option in session.line.values:
            raise UsageProblem(f"{option} needs {TO} FOLDER, which uploads the data")
    sources = _sources(session.operand)
    extensions = session.client.extensions()
    if wire.EXT_DATA_PREVIEW not in extensions:
        raise DlicmdError(f"this server cannot preview data (it lacks the extension '{wire.EXT_DATA_PREVIEW}')")
    paths: list[str] = []
    if wire.EXT_LOCAL_PATHS in extensions:
        paths = named_in("", sources)
        sources = [change_source(source, local_path) for source in sources]
    with nearer(paths):
        found = session.client.preview(sources)
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit("\n\n".join(_text(one) for one in found))
    return Exit.DONE if all(one.get(wire.OK) for one in found) else Exit.FAILED


def _upload(session: Session) -> int:
    """Upload a file or folder. Print where the server stored it."""
    line = session.line
    if wire.EXT_DATA_UPLOAD not in session.client.extensions():
        raise DlicmdError(f"this server stores no uploads of data (it lacks the extension '{wire.EXT_DATA_UPLOAD}'); "
                          "copy the data to the server")
    found = session.client.upload_data(
        session.operand, line.text(TO) or "", volume=line.text(VOLUME) or "", replace=line.flag(REPLACE), progress=bar)
    if session.output.is_data:
        emit_value(found, session.output)
        return Exit.DONE
    info(f"stored {file_count(found.files or 0)}, {show_size(found.bytes or 0)}")
    emit(inert(found.path or "."))
    if not line.text(VOLUME):
        info(f"use them in a job: dlicmd run PROGRAM --data {inert(shlex.quote(found.path or '.'))}")
    return Exit.DONE


def _sources(text: str) -> list[Any]:
    """Return the sources in a JSON text, or the one source that a user typed. The user types `NAME:PATH` or `NAME:`
    for a connection, or a path. Raises UsageProblem."""
    if text.lstrip()[:1] in ("[", "{"):
        return one_or_more(text, OPTION)
    name, colon, path = text.partition(":")
    if colon and path.startswith("//"):
        raise UsageProblem(f"{OPTION}: give a URL as JSON: a connection of its type, and a location")
    if colon and name:
        return [{TYPE: CONNECTED, CONNECTION: {NAME: name}, LOCATION: {PATH: path} if path else {}}]
    return [{TYPE: FS, LOCATION: {PATH: [text]}}]


def _text(found: Mapping[str, Any]) -> str:
    lines = [" ".join(filter(None, (str(found.get(NAME)), f"({found.get('kind') or found.get(TYPE)})")))]
    if not found.get(wire.OK):
        lines.append(f"cannot be read: {found.get(wire.MESSAGE)}")
    if (files := found.get("files")) is not None:
        more = "more than " if found.get("more") else ""
        lines.append(f"{more}{files:,} file{'' if files == 1 else 's'}, {show_size(found.get('bytes') or 0)}")
        lines += [f"  {one.get('path')}  {'' if one.get('bytes') is None else show_size(one['bytes'])}".rstrip()
                  for one in found.get("names") or ()]
    if found.get("sample"):
        lines.append(f"{found['sample']}: {found.get('format')}")
    if remark := _unreadable(found):
        lines.append(remark)
    if "rowCount" in found:
        lines.append(_size(found))
    arrays = [{**found, "name": ""}] if found.get("dtype") else found.get("arrays") or []
    lines += [f"array {one.get('name') or ''}".rstrip() + f": {_shape(one)} of {one.get('dtype')}" for one in arrays]
    if schema := found.get("schema"):
        lines.append("columns: " + ", ".join(f"{column.get('name')} {column.get('type')}" for column in schema))
    return inert("\n".join(lines)) + _rows(found)


def _unreadable(found: Mapping[str, Any]) -> str:
    """Return a line with the number and names of the files that cannot be read; "" when there are none."""
    count, names = found.get("unreadable") or 0, found.get("unreadableNames") or ()
    if not count:
        return ""
    more = ", …" if count > len(names) else ""
    return (f"the user that runs the jobs cannot read {count:,} file{'' if count == 1 else 's'}: "
            + ", ".join(f"{one.get('path')} ({one.get('message')})" for one in names) + more)


def _size(found: Mapping[str, Any]) -> str:
    """Return the number of rows and, for a table, its size at its server."""
    rows, size = found.get("rowCount"), None if "files" in found else found.get("bytes")
    if rows is None:
        text = "the number of rows is unknown"
    else:
        text = f"{'about ' if found.get('rowCountEstimated') else ''}{rows:,} row{'' if rows == 1 else 's'}"
    guess = " (the server's estimate)" if rows is not None and found.get("rowCountEstimated") else ""
    return text + guess + ("" if size is None else f", {show_size(size)} on the server")


def _shape(array: Mapping[str, Any]) -> str:
    shape = array.get("shape")
    return "x".join(map(str, shape)) if isinstance(shape, list) and shape else "one element"


def _rows(found: Mapping[str, Any]) -> str:
    """Return the first rows: those of tables in columns, others one after the other."""
    rows, names = found.get("rows") or [], [str(column.get("name")) for column in found.get("schema") or ()]
    if not rows:
        return ""
    cells = [[_cell(value) for value in row] for row in rows]
    if names or found.get("format") == "csv":
        return "\n" + grid([*([names] if names else []), *cells])
    return "\n" + inert("\n".join("  " + "  ".join(row) for row in cells))


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
