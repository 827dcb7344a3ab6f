"""Output about searches for hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.reading import objects
from dlicmd.render import Output, emit, scalar, show_rows
from dlicmd.show.table import table

COLUMNS = ("name", *wire.SEARCH_KEYS)
_INDENT = " " * 8


def show_searches(found: list[dict[str, Any]], output: Output) -> None:
    """Print searches; in the table, each search has its experiments below it."""
    if output.is_data or output.columns or not found:
        show_rows(found, output, COLUMNS, _cell)
        return
    head, *lines = _lines(found, COLUMNS)
    emit(head)
    for search, line in zip(found, lines, strict=True):
        below = _lines(objects(search.get(wire.EXPERIMENTS)), wire.EXPERIMENT_KEYS)[1:]
        emit("\n".join([line, *(_INDENT + experiment for experiment in below)]))


def show_algorithms(found: list[dict[str, Any]], output: Output) -> None:
    """Print search algorithms."""
    show_rows(found, output, wire.ALGORITHM_KEYS, lambda item, name: scalar(item.get(name)))


def _lines(items: list[dict[str, Any]], columns: tuple[str, ...]) -> list[str]:
    return table([{name: _cell(item, name) for name in columns} for item in items], columns).split("\n")


def _cell(item: Mapping[str, Any], column: str) -> str:
    return scalar(item.get(wire.SEARCH_NAME if column == "name" else column))
