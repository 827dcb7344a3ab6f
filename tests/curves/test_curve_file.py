"""The curves in memory and in their file."""

from __future__ import annotations

import io
import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.curves import book as books
from local_backend.curves.book import Book, shown
from local_backend.curves.file import CurveFile, Reading, began, load, read
from local_backend.curves.model import MetricValue


def filled(*values: tuple[str, str, float, float]) -> Book:
    """Return a book with values: source, name, step, value."""
    book = Book()
    for source, name, step, value in values:
        book.add(source, MetricValue(name, value, step, "step"))
    return book


def reading(path: Path, cursor: str = "", *metrics: str) -> Reading:
    with path.open("rb") as file:
        return read(file, cursor, metrics)


def steps(curve: books.KeptCurve) -> list[float]:
    return [step for step, _, _ in curve.points()]


def test_points_are_ordered_and_the_last_value_of_a_step_counts() -> None:
    (curve,) = filled(*(("printed", "loss", step, value) for step, value in ((1, 0.1), (5, 0.5), (3, 0.3), (1, 0.7)))
                      ).curves
    assert curve.points() == [(1, 0.7, None), (3, 0.3, None), (5, 0.5, None)]
    assert curve.last == (1, 0.7)


def test_values_that_are_not_finite_are_counted() -> None:
    (curve,) = filled(*(("printed", "loss", step, value) for step, value in ((1, math.nan), (2, math.inf), (3, 1)))
                      ).curves
    assert curve.left == 2 and steps(curve) == [3]


@given(st.integers(1, 200), st.integers(2, 20))
def test_thinning_keeps_first_and_last_and_even_gaps(count: int, most: int) -> None:
    curve = books.KeptCurve("loss", "printed", "step")
    for step in range(count):
        curve.add(float(step), 1.0, None)
        if len(curve) > most:
            curve.thin(most)
    kept = steps(curve)
    gaps = {second - first for first, second in itertools.pairwise(kept[:-1])}  # the last one may be nearer
    assert kept[0] == 0 and kept[-1] == count - 1 and len(kept) <= most and len(gaps) <= 1
    assert len(kept) >= min(count, most // 2)


def test_all_curves_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MOST_IN_ALL", 100)
    book = filled(*(("printed", f"loss{number}", step, 1.0) for number in range(250) for step in range(20)))
    assert len(book.curves) == books.MOST_CURVES and sum(map(len, book.curves)) <= 2 * books.MOST_CURVES


def test_a_curve_is_shown_from_the_most_trusted_source() -> None:
    book = filled(*((source, name, 1.0, 1.0) for source, name in (
        ("printed", "Loss"), ("tensorboard", "train/loss"), ("dlicmd.log", "loss"), ("printed", "val loss"),
        ("tensorboard", "val/loss"), ("printed", "acc"), ("tensorboard", "loss"))))
    assert [(one.source, one.name) for one in shown(book.curves)] == [
        ("dlicmd.log", "loss"), ("tensorboard", "val/loss"), ("printed", "acc")]


def test_the_last_values_begin_with_the_losses() -> None:
    names = ("grad_norm", "acc", "val_loss", "loss", *"abcdefgh")
    last = filled(*(("printed", name, 1.0, 1.0) for name in names)).last()
    assert list(last)[:3] == ["loss", "val_loss", "acc"] and set(last) == {*names}
    assert last["loss"] == {"value": 1.0, "step": 1.0, "stepUnit": "step"}
    assert '"step": 1,' in json.dumps(last["loss"]), "a whole number has no fraction"


def test_values_after_the_last_finite_one_are_counted() -> None:
    values = (float("nan"), 0.5, float("inf"), 0.25, float("nan"), float("nan"))
    last = filled(*(("printed", "loss", step, value) for step, value in enumerate(values))).last()
    assert last["loss"] == {"value": 0.25, "step": 3, "stepUnit": "step", "left": 2}


def test_a_file_is_read_whole_and_from_a_cursor(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    book = filled(("printed", "loss", 1, 0.5), ("printed", "acc", 1, 0.1))
    file = CurveFile(path, book, 5.0)
    whole = reading(path)
    assert whole.whole and [one["points"] for one in whole.curves] == [[[1, 0.5, None]], [[1, 0.1, None]]]
    for step, value in ((1, 0.6), (2, 0.7)):
        index, at = book.add("printed", MetricValue("loss", value, step, "step")) or (0, 0)
        file.note(index, at, value, None)
    file.flush()
    later = reading(path, whole.cursor)
    assert not later.whole and [one["points"] for one in later.curves] == [[[1, 0.6, None], [2, 0.7, None]]]
    assert reading(path, later.cursor) == Reading([], later.cursor, False)
    assert [one["name"] for one in reading(path, "", "Loss").curves] == ["loss"]
    assert reading(path, "other.7").whole and reading(path, "-1").whole


def test_a_long_file_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_backend.curves.file._SLACK", 2000)
    path, book = tmp_path / "curves.jsonl", Book()
    file = CurveFile(path, book, 5.0)
    before = reading(path).cursor
    for value in range(1000):
        book.add("printed", MetricValue("loss", value, 1.0, "step"))
        file.note(0, 1.0, value, None)
        file.flush()
    assert path.stat().st_size < 5000
    found = reading(path, before)
    assert found.whole and found.curves[0]["points"] == [[1, 999, None]]


def test_points_are_written_again_after_a_failure(tmp_path: Path) -> None:
    path, book = tmp_path / "curves.jsonl", filled(("printed", "loss", 1, 0.5))
    file = CurveFile(path, book, 5.0)
    path.unlink()
    book.add("printed", MetricValue("loss", 0.4, 2.0, "step"))
    file.note(0, 2.0, 0.4, None)
    with pytest.raises(FileNotFoundError):
        file.flush()
    file.flush()
    assert reading(path).curves[0]["points"] == [[1, 0.5, None], [2, 0.4, None]]


def test_a_later_attempt_continues(tmp_path: Path) -> None:
    path, book = tmp_path / "curves.jsonl", filled(("fabric", "loss", 1, 0.5), ("fabric", "loss", 2, 0.4))
    book.add("printed", MetricValue("acc", 0.1))
    CurveFile(path, book, 5.0)
    again = Book()
    with path.open("rb") as file:
        assert began(file) == 5.0
        load(file, again)
    assert [(one.name, steps(one)) for one in again.curves] == [("loss", [1, 2])]


LINES = st.one_of(
    st.binary(max_size=50),
    st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just(0)),
                 lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                     st.sampled_from(["i", "name", "source", "unit", "p", "left", "generation", "began"]), inner),
                 max_leaves=20).map(lambda value: json.dumps(value).encode()),
)


@given(st.lists(LINES, max_size=10), st.text(max_size=10))
def test_hostile_files_do_no_harm(lines: list[bytes], cursor: str) -> None:
    head = b'{"generation":1}\n{"i":0,"name":"loss","source":"printed","unit":"step"}\n'
    content = head + b"\n".join(lines) + b"\n"
    found = read(io.BytesIO(content), cursor, ())
    json.dumps(found.curves, allow_nan=False)
    load(io.BytesIO(content), Book())
    began(io.BytesIO(content))
