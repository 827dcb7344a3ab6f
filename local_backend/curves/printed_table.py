"""Tables that programs print while they train: a line with the names of the columns, then a line for each epoch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

#: Names of a first column that counts.
EPOCHS, STEPS = frozenset({"epoch", "epochs"}), frozenset({"step", "steps", "iter", "iteration"})
#: A cell: words with single spaces between them. Columns are separated by several spaces, tabs or lines.
_CELL = re.compile(r"[^\s|│]{1,60}(?: [^\s|│]{1,60}){0,5}")
_NAME = re.compile(r"[A-Za-z#][A-Za-z0-9_@./%()# -]*")
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?%?|[-+]?(?:nan|inf)")
_HEAD = re.compile(rb"epoc|step|iter", re.IGNORECASE)
_ROW = re.compile(rb"[\s|]{0,40}[0-9]{1,9}[\s|]")
_MOST_COLUMNS = 40
#: Names of so many columns, among them that of a metric, are those of another table.
_OTHER_COLUMNS = 3

Cell = tuple[str, int, int]


class PrintedTable:
    """The table that a program prints, if it prints one. Lines between its rows may be anything else.

    The table ends at the names of other columns, and at a row whose number is lower than that of the row before it:
    this is the first row of another table, such as a classification report."""

    def __init__(self, is_metric: Callable[[str], bool]) -> None:
        """`is_metric`: whether the name of a column is that of a metric."""
        self._is_metric = is_metric
        self._columns: list[Cell] = []
        self._last = -1.0

    @property
    def begun(self) -> bool:
        """Whether a line has named columns."""
        return bool(self._columns)

    @property
    def counts_epochs(self) -> bool:
        """Whether the rows are epochs; otherwise they are steps."""
        return self.begun and self._columns[0][0].lower() in EPOCHS

    def columns(self, text: str) -> list[Cell]:
        """Return the names of columns in a line; an empty list if it has none."""
        if not text.lstrip(" |│\t")[:4].lower().startswith(("epoc", "step", "iter")):
            return []
        cells = _cells(text)
        names = [name for name, _, _ in cells]
        named = 1 < len(names) <= _MOST_COLUMNS and names[0].lower() in EPOCHS | STEPS
        return cells if named and all(map(_NAME.fullmatch, names)) and any(map(self._is_metric, names)) else []

    def begin(self, text: str) -> bool:
        """Return whether a line has the names of columns, and if so, expect rows below it."""
        cells = self.columns(text)
        if cells or (self._columns and self._are_others(_cells(text))):
            self._columns, self._last = cells, -1.0
        return bool(cells)

    def row(self, text: str) -> tuple[float, list[tuple[str, float]]] | None:
        """Return the epoch or step of a row, and its metrics by name; None for any other line."""
        cells = _cells(text) if self._columns else []
        if not 1 < len(cells) <= len(self._columns) or not cells[0][0].isdecimal():
            return None
        found = [(name, float(text.rstrip("%"))) for name, text in self._placed(cells)
                 if self._is_metric(name) and _NUMBER.fullmatch(text)]
        number = float(cells[0][0])
        if number < self._last and found:
            self._columns = []
        if number <= self._last or not found:
            return None
        self._last = number
        return number, found

    def _are_others(self, cells: list[Cell]) -> bool:
        """Return whether cells are the names of the columns of a table that counts no epochs and no steps."""
        names = [name for name, _, _ in cells]
        return len(names) >= _OTHER_COLUMNS and all(map(_NAME.fullmatch, names)) and any(map(self._is_metric, names))

    def _placed(self, cells: list[Cell]) -> Iterator[tuple[str, str]]:
        """Yield the name of the column and the text of each cell. A row without some cells has the others at the left
        or the right end of their columns."""
        full = len(cells) == len(self._columns)
        for number, (text, start, end) in enumerate(cells):
            for at, (name, first, last) in enumerate(self._columns):
                if number == at if full else start == first or end == last:
                    yield name, text


def may_name_columns(line: bytes) -> bool:
    """Return whether a line may begin with the name of a column that counts."""
    return _HEAD.search(line, 0, 80) is not None


def may_be_row(line: bytes) -> bool:
    """Return whether a line begins as a row of a table does."""
    return _ROW.match(line) is not None


def _cells(text: str) -> list[Cell]:
    """Return the cells of a line, each with the positions of its first and its last character."""
    return [(found[0], found.start(), found.end()) for found in _CELL.finditer(text)]
