"""All points of long curves: what is written, what a reader finds, and how many bytes it reads for it."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_backend.curves.columns import drawn
from local_backend.curves.layout import NAMES, POINT, SIZES, TIME
from local_backend.curves.point_reader import PointReader
from local_backend.curves.points import PointWriter

LOSS = ("dlicmd.log", "loss", "step")
Points = list[tuple[float, float]]


def written(folder: Path, *attempts: Points, every: int = 1000, most: int = 1 << 30) -> None:
    """Write the points of attempts, each by a new writer that flushes now and then."""
    for points in attempts:
        writer = PointWriter(folder, most)
        for number, (step, value) in enumerate(points, 1):
            writer.add(LOSS, step, value, 1e9 + number)
            if number % every == 0:
                writer.flush()
        writer.flush()


def opener(folder: Path) -> Any:
    def opened(name: str) -> BinaryIO | None:
        path = folder / name
        return path.open("rb") if path.is_file() else None

    return opened


def found(folder: Path, width: int = 10_000, start: float | None = None, stop: float | None = None) -> Points:
    reader = PointReader(opener(folder))
    (curve,) = reader.curves(())
    return list(zip(*reader.points(curve, width, start, stop), strict=True))


def noisy(count: int) -> Points:
    return [(float(step), float(step * 7919 % 1009)) for step in range(count)]


def test_all_points_come_back(tmp_path: Path) -> None:
    points = noisy(5000)
    written(tmp_path, points, every=77)
    assert found(tmp_path) == points


def test_a_part_has_its_points_and_one_more_on_each_side(tmp_path: Path) -> None:
    written(tmp_path, noisy(3000))
    assert [step for step, _ in found(tmp_path, 100, 10.5, 13)] == [10, 11, 12, 13, 14]
    assert [step for step, _ in found(tmp_path, 100, -5, 1)] == [0, 1, 2]
    assert [step for step, _ in found(tmp_path, 100, 5000, 6000)] == [2999]


def test_a_repeated_attempt_adds_nothing(tmp_path: Path) -> None:
    points = noisy(1500)
    written(tmp_path, points, points, points)
    assert found(tmp_path) == points
    assert (tmp_path / "0.0").stat().st_size == 1500 * POINT.size


def test_an_attempt_that_goes_back_replaces_the_later_steps(tmp_path: Path) -> None:
    again = [(float(step), -1.0) for step in range(1200, 2500)]
    written(tmp_path, noisy(2000), again)
    assert found(tmp_path) == noisy(1200) + again


def test_a_late_value_replaces_one_step(tmp_path: Path) -> None:
    written(tmp_path, [*noisy(1000), (500.0, -3.0), *noisy(1300)[1000:]])
    expected = noisy(1300)
    expected[500] = (500.0, -3.0)
    assert found(tmp_path) == expected


def test_the_last_value_of_the_newest_step_counts(tmp_path: Path) -> None:
    written(tmp_path, [(1.0, 5.0), (2.0, 6.0), (2.0, 7.0)], [(2.0, 8.0), (3.0, 9.0)], every=1)
    assert found(tmp_path) == [(1, 5), (2, 8), (3, 9)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 60).map(float), st.integers(0, 5).map(float)), max_size=150),
                min_size=1, max_size=4), st.integers(1, 50))
def test_any_order_gives_growing_steps_and_written_values(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[Points], every: int
) -> None:
    folder = tmp_path_factory.mktemp("points")
    written(folder, *attempts, every=every)
    everything = [point for attempt in attempts for point in attempt]
    if not everything:
        return
    points = found(folder)
    assert all(before < after for (before, _), (after, _) in itertools.pairwise(points))
    assert set(points) <= set(everything)
    assert everything[-1] in points


def test_a_torn_end_is_ignored_and_continued(tmp_path: Path) -> None:
    written(tmp_path, noisy(1000))
    with (tmp_path / "0.0").open("ab") as file:
        file.write(b"\0" * 7)
    assert found(tmp_path) == noisy(1000)
    written(tmp_path, noisy(1100))
    assert found(tmp_path) == noisy(1100)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_lost_summaries_are_made_again(tmp_path: Path, level: int) -> None:
    count = SIZES[3] + 3000
    written(tmp_path, noisy(count), every=5000)
    before = [(tmp_path / f"0.{one}").read_bytes() for one in (1, 2, 3)]
    with (tmp_path / f"0.{level}").open("r+b") as file:
        file.truncate(0)
    written(tmp_path, noisy(count))
    assert [(tmp_path / f"0.{one}").read_bytes() for one in (1, 2, 3)] == before


def test_full_files_say_so(tmp_path: Path) -> None:
    written(tmp_path, noisy(2000), most=1000 * (POINT.size + TIME.size))
    reader = PointReader(opener(tmp_path))
    assert not reader.complete and found(tmp_path) == noisy(1000)


def test_files_that_a_program_has_changed_do_no_harm(tmp_path: Path) -> None:
    written(tmp_path, noisy(70_000), every=20_000)
    for name in ("0.1", "0.2"):
        (tmp_path / name).write_bytes(b"\xff" * 100_000)
    (tmp_path / NAMES).write_bytes((tmp_path / NAMES).read_bytes() + b'{"n": 0, "from": -5}\n{"n": 7}\nnot json\n[1]\n')
    steps = [step for step, _ in found(tmp_path, 100)]
    assert steps == sorted(set(steps))
    (tmp_path / "0.0").write_bytes(struct.pack("<4d", 5.0, float("nan"), 4.0, 1.0))
    assert found(tmp_path) == [(4.0, 1.0)]


def test_ten_million_points_are_opened_and_zoomed_with_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, width, peak = 10_000_000, 1000, 7_654_321
    _fast(tmp_path, count, peak)
    from local_backend.curves import point_reader

    read = 0
    real = point_reader.os.pread

    def counted(fd: int, most: int, offset: int) -> bytes:
        nonlocal read
        data = real(fd, most, offset)
        read += len(data)
        return data

    monkeypatch.setattr(point_reader.os, "pread", counted)
    whole = found(tmp_path, width)
    assert read < 2 << 20
    kept = drawn([(step, value, None) for step, value in whole], width)
    assert len(kept) <= 4 * width and (float(peak), 1e6, None) in kept
    assert kept[0][0] == 0 and kept[-1][0] == count - 1
    read = 0
    part = found(tmp_path, width, peak - 500, peak + 500)
    assert read < 1 << 16
    assert [step for step, _ in part] == [float(step) for step in range(peak - 501, peak + 502)]
    assert part[501] == (float(peak), 1e6)


def test_the_writer_summarizes_as_a_long_curve_needs_it(tmp_path: Path) -> None:
    for folder in (tmp_path / "fast", tmp_path / "written"):
        folder.mkdir()
    count, peak = 2 * SIZES[3] + 1, 20_000
    _fast(tmp_path / "fast", count, peak)
    with (tmp_path / "fast" / "0.0").open("rb") as file:
        written(tmp_path / "written", list(POINT.iter_unpack(file.read())), every=999)
    for level in range(4):
        assert (tmp_path / "fast" / f"0.{level}").read_bytes() == (tmp_path / "written" / f"0.{level}").read_bytes()


def _fast(folder: Path, count: int, peak: int) -> None:
    """Write a long curve as the writer does, but with one summary for each block that is computed once."""
    import numpy as np

    (folder / NAMES).write_text('{"n":0,"source":"dlicmd.log","name":"loss","unit":"step"}\n')
    points = np.empty((count, 2))
    points[:, 0] = np.arange(count)
    points[:, 1] = np.sin(points[:, 0] / 1e5) + (points[:, 0] * 7919 % 1009) / 1e4
    points[peak, 1] = 1e6
    points.tofile(folder / "0.0")
    for level in (1, 2, 3):
        size = SIZES[level]
        blocks = points[: (count - 1) // size * size].reshape(-1, size, 2)
        rows = np.arange(len(blocks))
        low, high = blocks[:, :, 1].argmin(axis=1), blocks[:, :, 1].argmax(axis=1)
        np.concatenate([blocks[:, 0], blocks[rows, low], blocks[rows, high], blocks[:, -1]], axis=1).tofile(
            folder / f"0.{level}")


def timed(folder: Path, start: float | None = None, stop: float | None = None) -> Points:
    reader = PointReader(opener(folder))
    (curve,) = reader.curves(())
    return list(zip(*reader.timed(curve, start, stop), strict=True))


def test_each_point_has_its_time(tmp_path: Path) -> None:
    written(tmp_path, noisy(1000), every=77)
    written(tmp_path, noisy(3000), every=500)
    found = timed(tmp_path)
    assert [value for _, value in found] == [value for _, value in noisy(3000)]
    assert [moment for moment, _ in found] == [1e9 + number for number in range(1, 3001)]
    assert [moment - 1e9 for moment, _ in timed(tmp_path, 1e9 + 10.5, 1e9 + 12)] == [10, 11, 12, 13]


def test_repeated_steps_have_the_times_of_the_later_attempt(tmp_path: Path) -> None:
    writer = PointWriter(tmp_path)
    for step in range(100):
        writer.add(LOSS, step, 1.0, 1e9 + step)
    for step in range(50, 100):
        writer.add(LOSS, step, 2.0, 2e9 + step)
    writer.flush()
    assert timed(tmp_path) == [(1e9 + step, 1.0) if step < 50 else (2e9 + step, 2.0) for step in range(100)]


def test_points_without_a_time_have_no_place_on_the_clock(tmp_path: Path) -> None:
    writer = PointWriter(tmp_path)
    for step in range(10):
        writer.add(LOSS, step, float(step), None if step % 2 else 1e9 + step)
    writer.flush()
    assert [value for _, value in timed(tmp_path)] == [0, 2, 4, 6, 8]
    (tmp_path / "0.t").unlink()
    assert timed(tmp_path) == [] and len(found(tmp_path)) == 10


def test_very_many_points_have_a_peak_at_its_time(tmp_path: Path) -> None:
    import numpy as np

    count, peak = 3_000_000, 1_234_567
    _fast(tmp_path, count, peak)
    (1e9 + np.arange(count)).tofile(tmp_path / "0.t")
    found = timed(tmp_path)
    assert len(found) < count / 10
    assert [moment for moment, _ in found] == sorted(moment for moment, _ in found)
    (at,) = [moment for moment, value in found if value == 1e6]
    assert at == pytest.approx(1e9 + peak, abs=count / 1000)
    assert found[0][0] == 1e9 and found[-1][0] == 1e9 + count - 1
    part = timed(tmp_path, 1e9 + peak, 1e9 + peak)
    assert [moment - 1e9 for moment, _ in part] == [peak - 1, peak, peak + 1]
