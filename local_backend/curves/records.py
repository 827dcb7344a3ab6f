"""Readers of text that libraries write for machines: JSON lines, JSON, CSV, and MLflow's lines of three numbers."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from typing import Any

from local_backend.curves.model import (
    EMETRICS,
    EPOCH,
    HUGGINGFACE,
    LIGHTNING,
    LINE,
    LOG,
    MLFLOW,
    STEP,
    MetricValue,
    clean,
    number,
)

#: Maximum bytes of a line, and number of values in a record.
LONGEST, _WIDEST = 1 << 20, 200


def whole_lines(data: bytes, final: bool) -> tuple[int, list[bytes]]:
    """Return the size of the complete lines at the beginning of `data`, and the lines. A line that is longer than
    LONGEST is dropped in pieces."""
    size = data.rfind(b"\n") + 1
    if final or (not size and len(data) >= LONGEST):
        size = len(data)
    return size, [line for line in data[:size].split(b"\n") if 0 < len(line) < LONGEST]

_DECODER = json.JSONDecoder(parse_int=float)


def _json(line: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a line; an empty one if there is none."""
    try:
        found = _DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(values: object) -> Iterator[tuple[str, float]]:
    """Yield the names and numbers of a JSON object."""
    for name, value in list(values.items())[:_WIDEST] if isinstance(values, dict) else ():
        amount = None if isinstance(value, str) else number(value)
        if amount is not None:
            yield name, amount


class LogReader:
    """Reads the file of `dlicmd.log`."""

    source = LOG

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        size, lines = whole_lines(data, final)
        found: list[MetricValue] = []
        for entry in map(_json, lines):
            step, unit = number(entry.get("s")), EPOCH if entry.get("u") == EPOCH else STEP
            if step is not None:
                at = number(entry.get("t"))
                found += [MetricValue(name, value, step, unit, at) for name, value in _numbers(entry.get("v"))]
        return size, found


class EMetricsReader:
    """Reads evaluation-metrics.txt: `train` and `test` become parts of the names."""

    source = EMETRICS

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        size, lines = whole_lines(data, final)
        found: list[MetricValue] = []
        for entry in map(_json, lines):
            meta, times, values = (entry.get(name) for name in ("meta", "etimes", "values"))
            group = clean(entry.get("grouplabel"))
            at = number(meta.get("time")) if isinstance(meta, dict) else None
            step = _typed(times.get("iteration")) if isinstance(times, dict) else None
            for name, value in list(values.items())[:_WIDEST] if isinstance(values, dict) else ():
                amount = _typed(value)
                if amount is not None:
                    found.append(MetricValue(f"{group}/{name}" if group else name, amount, step,
                                       LINE if step is None else STEP, at and at / 1000))
        return size, found


def _typed(value: object) -> float | None:
    """Return the number of {"type", "value"}; None if it is a text."""
    return number(value.get("value")) if isinstance(value, dict) and "type" in value else None


class MLflowReader:
    """Reads a metric of MLflow's file store: lines of milliseconds, value and step."""

    source = MLFLOW

    def __init__(self, name: str) -> None:
        self._name = name

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        size, lines = whole_lines(data, final)
        found: list[MetricValue] = []
        for words in (line.decode(errors="replace").split() for line in lines):
            if 2 <= len(words) <= 3:
                at, value, *rest = map(number, words)
                step = rest[0] if rest else None
                if value is not None:
                    unit = LINE if step is None else STEP
                    found.append(MetricValue(self._name, value, step, unit, at and at / 1000))
        return size, found


class TrainerStateReader:
    """Reads trainer_state.json of Hugging Face's Trainer, which is written as a whole."""

    source = HUGGINGFACE

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        state = _json(data)
        history, total = state.get("log_history"), number(state.get("max_steps"))
        found: list[MetricValue] = []
        for entry in history if isinstance(history, list) else ():
            step = number(entry.get("step")) if isinstance(entry, dict) else None
            if step is not None:
                found += [MetricValue(name, value, step, STEP, total=total) for name, value in _numbers(entry)
                          if name not in ("step", "epoch", "total_flos")]
        return len(data), found


class MetricsCsvReader:
    """Reads metrics.csv of Lightning's CSVLogger, which is written anew when a metric appears."""

    source = LIGHTNING

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        size = data.rfind(b"\n") + 1
        rows = csv.reader(data[:size].decode(errors="replace").splitlines())
        found: list[MetricValue] = []
        try:
            names = [clean(name) for name in next(rows, [])][:_WIDEST]
            if "step" not in names:
                return len(data), []
            for row in rows:
                cells = dict(zip(names, row, strict=False))
                step = number(cells.get("step"))
                values = [(name, number(cell)) for name, cell in cells.items() if name not in ("step", "epoch", "")]
                found += [MetricValue(name, value, step, STEP) for name, value in values
                          if value is not None and step is not None]
        except csv.Error as problem:
            raise ValueError(str(problem)) from None
        return len(data), found
