"""HTML for notebooks. Names, states and messages come from a server and from other users, so all text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dlicmd.sdk.messages import one_line
from dlicmd.sdk.objects import Curve, Exec

#: Pixels of the drawing of a curve.
WIDTH, HEIGHT = 240, 40


def facts(found: Exec) -> dict[str, str]:
    """Return the columns of a job."""
    last = [f"{name} {value:.4g}" for name, (value, _) in found.last_metrics.items()]
    return {
        "job": found.id, "name": found.app_name, "state": found.state, "framework": found.framework,
        "workers": "" if found.num_worker is None else str(found.num_worker), "submitted": found.create_time,
        "ended": found.end_time, "last": ", ".join(last), "message": found.message,
    }


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows with the same columns as an HTML table. Columns without a value are left out."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    lines = [names, *([row[name] for name in names] for row in rows)]
    cells = ["".join(f"<{tag}>{escaped(text)}</{tag}>" for text in line)
             for tag, line in zip(["th", *["td"] * len(rows)], lines, strict=True)]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def drawn(curves: Sequence[Curve]) -> str:
    """Return curves as an HTML table: the name, the last step and value, and a line."""
    rows = []
    for curve in curves:
        last = curve.points[-1] if curve.points else None
        cells = [curve.name, "" if last is None else f"{last[0]:g}", "" if last is None else f"{last[1]:.6g}"]
        rows.append("".join(f"<td>{escaped(text)}</td>" for text in cells) + f"<td>{_line(curve)}</td>")
    head = "<th>metric</th><th>last step</th><th>last value</th><th></th>"
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _line(curve: Curve) -> str:
    """Return the points of a curve as SVG."""
    points = curve.points[::max(1, len(curve.points) // WIDTH)]
    if len(points) < 2:
        return ""
    steps, values = [point[0] for point in points], [point[1] for point in points]
    across, high = (max(steps) - min(steps)) or 1.0, (max(values) - min(values)) or 1.0
    drawn = " ".join(f"{(step - min(steps)) / across * WIDTH:.1f},{HEIGHT - (value - min(values)) / high * HEIGHT:.1f}"
                     for step, value in zip(steps, values, strict=True))
    return (f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="-1 -1 {WIDTH + 2} {HEIGHT + 2}">'
            f'<polyline points="{drawn}" fill="none" stroke="currentColor"/></svg>')


def escaped(text: str) -> str:
    """Return text for HTML, without control characters."""
    from html import escape  # only for notebooks

    return escape(one_line(text))


def cell(value: object) -> str:
    """Return a value as the text of a cell."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
