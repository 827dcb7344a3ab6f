"""Slot-hours of users, consumers, execs or slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlicmd.console import one_line
from dlicmd.contract import wire
from dlicmd.contract.reading import number, objects, words
from dlicmd.render import Output, emit, emit_value, scalar, show_rows

HOURS = "slot-hours"
HOLDINGS = (wire.EXEC_ID, wire.USER, wire.CONSUMER, wire.SLOT, wire.KIND, wire.SHARE, wire.FROM, wire.TO)


def show_usage(found: dict[str, Any], output: Output) -> None:
    """Print an answer of `Client.holdings`: sums by the requested key, or single holdings."""
    if output.is_data:
        emit_value(found, output)
        return
    begin, end = (words(found.get(name)) or "?" for name in (wire.FROM, wire.TO))
    if not output.columns:  # otherwise a program reads the rows
        emit(one_line(f"From {begin} To {end}: {_hours(found)} {HOURS}"))
    by = words(found.get(wire.BY))
    columns = HOLDINGS if by == wire.HOLDING else (by or wire.KEY, HOURS, wire.SHARE)
    show_rows(objects(found.get(wire.ROWS)), output, columns, lambda row, column: _cell(row, column, by))


def _cell(row: Mapping[str, Any], column: str, by: str) -> str:
    if column == HOURS:
        return _hours(row)
    if column == wire.SHARE and by != wire.HOLDING:
        share = number(row.get(wire.SHARE))
        return scalar(None if share is None else f"{share:.1%}")
    return scalar(row.get(wire.KEY if column == by else column))


def _hours(found: Mapping[str, Any]) -> str:
    seconds = number(found.get(wire.SLOT_SECONDS))
    return scalar(None if seconds is None else f"{seconds / 3600:,.2f}")
