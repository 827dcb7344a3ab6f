"""CSV files that pages offer as downloads."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from starlette.responses import Response

from local_backend.console.rendering import HEADERS

#: A cell of a spreadsheet that begins so is a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_file(name: str, rows: Iterable[Sequence[object]]) -> Response:
    """Return rows as a file to download. A spreadsheet computes no text of it as a formula."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerows([f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row]
                    for row in rows)
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")
