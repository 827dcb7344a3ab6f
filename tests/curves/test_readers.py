"""Readers of the files that loggers write, with files from the real libraries."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.curves.binary import LONGEST, EventsReader, WandbReader
from local_backend.curves.model import MetricValue, Reader
from local_backend.curves.records import (
    EMetricsReader,
    LogReader,
    MetricsCsvReader,
    MLflowReader,
    TrainerStateReader,
)
from local_backend.elastic.api.emetrics import EMetrics

FILES = Path(__file__).parent.parent / "data" / "curves"
GROWING: dict[str, Callable[[], Reader]] = {
    "simple.tfevents": EventsReader, "tensors.tfevents": EventsReader, "run.wandb": WandbReader,
    "mlflow_loss": lambda: MLflowReader("val/loss"),
}
WHOLE: dict[str, Callable[[], Reader]] = {"trainer_state.json": TrainerStateReader, "metrics.csv": MetricsCsvReader}
LOSSES = [(step, pytest.approx(1 / (step + 1))) for step in range(5)]


def read(name: str) -> list[MetricValue]:
    data = (FILES / name).read_bytes()
    done, values = (GROWING | WHOLE)[name]().feed(data, final=True)
    assert done == len(data)
    return values


def points(values: list[MetricValue], name: str) -> list[tuple[float | None, float]]:
    return [(one.step, one.value) for one in values if one.name == name]


def test_event_files_with_simple_values() -> None:
    values = read("simple.tfevents")
    assert points(values, "train/loss") == LOSSES
    assert {one.name for one in values} == {"train/loss", "val/loss"} and math.isnan(values[-1].value)
    assert [one.time for one in values[:5]] == [1_700_000_000 + step for step in range(5)]


def test_a_placeholder_of_lightning_is_no_metric() -> None:
    def found(tag: bytes, value: float) -> list[MetricValue]:
        scalar = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
        summary = b"\x0a" + bytes([len(scalar)]) + scalar
        event = b"\x2a" + bytes([len(summary)]) + summary
        return EventsReader().feed(struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4), final=True)[1]

    assert found(b"hp_metric", -1.0) == [] and found(b"hp_metric", 0.5)[0].value == 0.5
    assert found(b"loss", -1.0)[0].value == -1.0


def test_event_files_with_tensors() -> None:
    assert points(read("tensors.tfevents"), "epoch_loss") == LOSSES


def test_offline_files_of_wandb() -> None:
    values = read("run.wandb")
    assert points(values, "loss") == [*LOSSES, (10, 0.1)]
    assert points(values, "val.acc") == [(step, step / 10) for step in range(5)]
    assert {one.name for one in values} == {"loss", "val.acc"} and all((one.time or 0) > 1e9 for one in values)


def test_metrics_of_mlflow() -> None:
    values = read("mlflow_loss")
    assert points(values, "val/loss") == LOSSES and all(1e9 < (one.time or 0) < 1e10 for one in values)


def test_the_history_of_hugging_face() -> None:
    values = read("trainer_state.json")
    assert points(values, "loss") == [(10, 2.5), (20, 1.5)] and points(values, "eval_loss") == [(20, 1.25)]
    assert not {"step", "epoch", "total_flos"} & {one.name for one in values}


def test_the_csv_file_of_lightning() -> None:
    values = read("metrics.csv")
    assert points(values, "train_loss") == LOSSES[:3] and points(values, "val_loss") == [(2, 0.25)]
    assert {one.name for one in values} == {"train_loss", "val_loss"}


def test_evaluation_metrics(tmp_path: Path) -> None:
    with EMetrics(f=str(tmp_path / "metrics")) as metrics:
        metrics.record("train", 3, {"loss": 0.5, "note": "text"})
        metrics.record("test", None, {"loss": 0.25})
    _, values = EMetricsReader().feed((tmp_path / "metrics").read_bytes(), final=True)
    assert [(one.name, one.value, one.step, one.unit) for one in values] == [
        ("train/loss", 0.5, 3, "step"), ("test/loss", 0.25, None, "line")]


@pytest.mark.parametrize("name", sorted(GROWING))
@given(st.data())
def test_a_growing_file_is_read_in_any_pieces(name: str, data: st.DataObject) -> None:
    content, reader = (FILES / name).read_bytes(), GROWING[name]()
    ends = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    at, found = 0, list[MetricValue]()
    for end in (*ends, len(content)):
        done, values = reader.feed(content[at:end], final=False)
        at, found = at + done, found + values
    assert [tuple(map(str, one)) for one in found] == [tuple(map(str, one)) for one in read(name)]


@pytest.mark.parametrize("name", sorted(GROWING | WHOLE))
@given(st.data())
def test_damaged_files_raise_only_value_errors(name: str, data: st.DataObject) -> None:
    content = bytearray((FILES / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    try:
        done, values = (GROWING | WHOLE)[name]().feed(bytes(content[:cut]), final=True)
    except ValueError:
        return
    assert done >= 0 and all(isinstance(one.value, float) and isinstance(one.name, str) for one in values)


@pytest.mark.parametrize("make", [LogReader, EMetricsReader, EventsReader, WandbReader, MetricsCsvReader,
                                  TrainerStateReader, lambda: MLflowReader("x")])
@given(st.binary(max_size=300))
def test_any_bytes_raise_only_value_errors(make: Callable[[], Reader], content: bytes) -> None:
    for data in (content, b":W&B" + content, b'{"s": 1, "v": ' + content):
        try:
            make().feed(data, final=True)
        except ValueError:
            continue


def test_records_that_are_too_long_are_skipped() -> None:
    head = struct.pack("<Q", 3 * LONGEST) + bytes(4)
    good = (FILES / "simple.tfevents").read_bytes()
    reader = EventsReader()
    done, values = reader.feed(head + bytes(100), final=False)
    assert (done, values) == (12 + 3 * LONGEST + 4, [])
    assert reader.feed(good, final=False)[0] == len(good)


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"s": 1, "v": {"a": ' + b"9" * 5000 + b"}}",
                                  b'{"s": true, "v": {"a": 1}}', b'{"s": 1, "v": {"a": "1", "b": null, "c": [1]}}'])
def test_odd_lines_of_the_log_are_left_out(line: bytes) -> None:
    _, values = LogReader().feed(line + b'\n{"s": 1, "v": {"loss": 0.5}}\n', final=True)
    assert [(one.name, one.value) for one in values if math.isfinite(one.value)] == [("loss", 0.5)]
