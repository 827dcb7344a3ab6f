"""Finds the values of metrics that an experiment has delivered, in files that its program wrote: any content is
possible."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from local_backend.curves.model import EMETRICS, FABRIC, LOG
from local_backend.hypersearch.definition import Definition, Mode

#: Maximum bytes of val_dict_list.json, and the name that users know it by.
LARGEST, FILE = 4 << 20, "val_dict_list.json"
#: Sources of curves that count. Printed lines and the files of other libraries do not.
_SOURCES = frozenset({LOG, FABRIC, EMETRICS})
#: Curves of a metric, in the order in which they are looked for.
_PREFIXES = ("test/", "val/", "")
#: Longest part of a content that a sentence quotes, in characters, and most names.
_QUOTED, _NAMED = 60, 8


class NoObjective(Exception):
    """The experiment has no value of a wanted metric. The text is a sentence for the user."""


@dataclass(frozen=True)
class Found:
    """The values of an experiment: each wanted metric as one number, and the additional metrics as answers show
    them."""

    values: Mapping[str, float]
    metrics: list[dict[str, Any]] = field(default_factory=list)


def find(
    definition: Definition, open_file: Callable[[], BinaryIO | None], exists: bool,
    curves: Callable[[Sequence[str]], Sequence[Mapping[str, Any]]],
) -> Found:
    """Return the values of an experiment that has ended. `open_file` opens val_dict_list.json, None unless it is a
    plain file; `exists` says whether there is anything of that name. `curves` returns the curves with these names;
    without names, all.

    Raises NoObjective, OSError.
    """
    if exists:
        series = _of_file(definition, open_file())
    else:
        series = of_curves(definition, curves)
        missing = [metric for metric in definition.wanted if not series.get(metric)]
        if missing:
            raise NoObjective(f"the program wrote no {FILE} to RESULT_DIR, and no curve test/{missing[0]}, "
                              f"val/{missing[0]} or {missing[0]} (dlicmd.log, FabricModel, emetrics); "
                              f"{_reported(curves([]))}")
    return found_in(definition, series)


def _reported(curves: Sequence[Mapping[str, Any]]) -> str:
    """Return which metrics a program has instead of the wanted one."""
    counts = [_plain(str(one["name"])) for one in curves if one.get("source") in _SOURCES]
    others = [_plain(str(one["name"])) for one in curves if one.get("source") not in _SOURCES]
    if counts or not others:
        return f"it reported {', '.join(counts[:_NAMED]) or 'no metric'}"
    return f"it only printed {', '.join(others[:_NAMED])}, and printed lines do not count"


def found_in(definition: Definition, series: Mapping[str, Sequence[float]]) -> Found:
    """Return the values of metrics whose series are known. Raises NoObjective."""
    values: dict[str, float] = {}
    for metric, mode in definition.wanted.items():
        if not series.get(metric):
            raise NoObjective(f"no value of {metric} was found")
        values[metric] = as_one(series[metric], mode)
    return Found(values, [
        {"name": metric, "min": min(series[metric]), "max": max(series[metric]), "latest": series[metric][-1]}
        for metric in definition.additional if series.get(metric)
    ])


def as_one(values: Sequence[float], mode: Mode) -> float:
    """Return the value of a metric that counts."""
    return values[-1] if mode == "latest" else (max if mode == "maximize" else min)(values)


def of_curves(
    definition: Definition, curves: Callable[[Sequence[str]], Sequence[Mapping[str, Any]]]
) -> dict[str, list[float]]:
    """Return metric → values by step of each metric of a search that has a curve."""
    wanted = dict.fromkeys([*definition.wanted, *definition.additional])
    names = [name for metric in wanted for name in names_of_curves(metric)]
    known: dict[str, list[float]] = {}
    for curve in curves(names):
        if curve.get("source") in _SOURCES:
            known.setdefault(str(curve["name"]).lower(), [float(point[1]) for point in curve["points"]])
    return {metric: next((known[name.lower()] for name in names_of_curves(metric) if known.get(name.lower())), [])
            for metric in wanted}


def names_of_curves(metric: str) -> list[str]:
    """Return the names of the curves of a metric, in the order in which they are looked for."""
    return [prefix + metric for prefix in _PREFIXES]


def _of_file(definition: Definition, file: BinaryIO | None) -> dict[str, list[float]]:
    """Return metric → values of val_dict_list.json. Raises NoObjective, OSError."""
    if file is None:
        raise NoObjective(f"{FILE} in RESULT_DIR is not a regular file")
    with file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise NoObjective(f"{FILE} is larger than {LARGEST:,} bytes")
    try:
        items = json.loads(content)
    except (ValueError, RecursionError):
        raise NoObjective(f"{FILE} is not JSON: it begins with {_quoted(content)}") from None
    if not isinstance(items, list):
        raise NoObjective(f"{FILE} is not a JSON list of objects: it begins with {_quoted(content)}")
    entries = [item for item in items if isinstance(item, dict)]
    series = {metric: _numbers(entry.get(metric) for entry in entries)
              for metric in dict.fromkeys([*definition.wanted, *definition.additional])}
    for metric in definition.wanted:
        if not series[metric]:
            raise NoObjective(f"{FILE} has no number with the key {metric}: {_instead(entries, metric)}")
    return series


def _numbers(values: Iterable[object]) -> list[float]:
    found: list[float] = []
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308:
            found.append(float(value))
    return found


def _instead(entries: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return what a file has instead of a metric."""
    there = [entry[metric] for entry in entries if metric in entry]
    if there:
        what = "NaN or infinity" if any(isinstance(one, float) and not math.isfinite(one) for one in there) else (
            f"{str(there[0])[:_QUOTED]!r}")
        return f"its value is {what}"
    keys = list(dict.fromkeys(_plain(key) for entry in entries[:100] for key in entry))[:_NAMED]
    return f"its keys are {', '.join(keys)}" if keys else "it has no objects with keys"


def _plain(name: str) -> str:
    """Return a name that a program wrote, for a sentence: it may contain anything."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name[:_QUOTED])


def _quoted(content: bytes) -> str:
    return repr(content[:_QUOTED].decode(errors="replace"))
