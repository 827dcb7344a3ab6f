"""Addresses of pages: what they say about a table, and how links say it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends


@dataclass(frozen=True)
class TableQuery:
    """Which rows of a table a page shows, as its address says."""

    state: str = ""
    sort: str = ""
    down: str = ""
    page: str = ""
    #: What the chart has as its horizontal axis: `time`, or experiments.
    by: str = ""

    @property
    def number(self) -> int:
        """The number of the page of the table, 1 for anything else."""
        return max(1, int(self.page)) if self.page.isdecimal() and len(self.page) < 9 else 1


TheTable = Annotated[TableQuery, Depends()]


def query_of(**values: object) -> str:
    """Return the query of a link, without empty values."""
    return urlencode({name: str(value).lower() if isinstance(value, bool) else value
                      for name, value in values.items() if value != ""})
