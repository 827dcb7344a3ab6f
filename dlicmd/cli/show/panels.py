"""Charts of metrics: metrics of the same kind share a chart, with one color for each line, and a table as legend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from dlicmd.cli.console import has_styles, paint
from dlicmd.cli.show.chart import chart, sign
from dlicmd.cli.show.numbers import shown
from dlicmd.cli.show.series import Series
from dlicmd.cli.show.table import column_width, cut, table
from dlicmd.contract.metric_names import kind
from dlicmd.sdk.messages import one_line

#: The sign of a line in the legend of a chart in braille.
_LINE = "⣿"
_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")
#: Rows of a chart: the fewest, the most. Rows of axis, title and prompt. Most series in a legend that is a table.
_LEAST_ROWS, _MOST_ROWS, _OTHER_ROWS, _MOST_LEGEND = 5, 20, 4, 6


class Panel(NamedTuple):
    """Series that share a chart: they have the same kind of metric, and the same units."""

    kind: str
    series: list[Series]

    @property
    def title(self) -> str:
        """The name of the metric, or of the kind of several metrics, and the unit of the values."""
        names = {one.metric for one in self.series}
        name = one_line(names.pop() if len(names) == 1 else self.kind)
        unit = one_line(self.series[0].unit)
        return f"{name} ({unit})" if unit else name


def panels(series: Sequence[Series]) -> list[Panel]:
    """Return series in groups that share a chart, in the order in which the groups begin."""
    groups: dict[tuple[str, str, str], Panel] = {}
    for one in series:
        named = kind(one.metric)
        groups.setdefault((named, one.step_unit, one.unit), Panel(named, [])).series.append(one)
    return list(groups.values())


def drawn(series: Sequence[Series], columns: int, lines: int) -> str:
    """Return the charts of all series with their legends, for a terminal of this size."""
    found = panels(series)
    legends = [_legend(panel.series, columns) for panel in found]
    available = (lines - sum(len(legend) + _OTHER_ROWS for legend in legends)) // len(found)
    height = min(_MOST_ROWS, max(_LEAST_ROWS, available))
    return "\n\n".join(
        "\n".join([paint(cut(one_line(panel.title), columns), "bold"), *_chart(panel, columns, height), *legend])
        for panel, legend in zip(found, legends, strict=True))


def _chart(panel: Panel, columns: int, height: int) -> list[str]:
    lines = [[(point.step, point.value) for point in one.points] for one in panel.series]
    return chart(lines, columns, height, one_line(panel.series[0].step_unit), braille=has_braille(len(panel.series)),
                 painted=colored)


def _legend(series: Sequence[Series], columns: int) -> list[str]:
    """Return the lines of the legend: a table, or for many series several in a line."""
    braille = has_braille(len(series))
    signs = [_LINE if braille else sign(number) for number in range(len(series))]
    if len(series) > _MOST_LEGEND:
        return _compact(series, signs, columns)
    unit = series[0].step_unit
    rows = [{
        "": mark, "job": one.job, "name": one.name, "metric": one.metric, "last": shown(one.last.value),
        unit: shown(one.last.step), "best": shown(one.best.value), f"best {unit}": shown(one.best.step),
    } for mark, one in zip(signs, series, strict=True)]
    titles = [name for name in rows[0] if name != "name" or any(row["name"] for row in rows)]
    head, *lines = table(rows, titles).split("\n")
    return [head, *(colored(line[0], number) + line[1:] for number, line in enumerate(lines))]


def _compact(series: Sequence[Series], signs: Sequence[str], columns: int) -> list[str]:
    """Return a legend with several series in a line: sign, job, metric if there are several, last value."""
    several = len({one.metric for one in series}) > 1
    texts = [" ".join(filter(None, (mark, one_line(one.job), one_line(one.metric) if several else "",
                                    shown(one.last.value)))) for mark, one in zip(signs, series, strict=True)]
    widest = max(map(column_width, texts)) + 2
    count = max(1, (columns + 2) // widest)
    cells = [colored(text[0], number) + text[1:] + " " * (widest - column_width(text))
             for number, text in enumerate(texts)]
    return ["".join(cells[at:at + count]).rstrip() for at in range(0, len(cells), count)]


def has_braille(count: int) -> bool:
    """Return whether `count` lines of dots can be told apart on standard output: it can encode them, and shows a color
    for each line."""
    if count > (len(_COLORS) if has_styles() else 1):
        return False
    try:
        _LINE.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def colored(text: str, number: int) -> str:
    """Return a text in the color of a line."""
    return paint(text, _COLORS[number % len(_COLORS)])
