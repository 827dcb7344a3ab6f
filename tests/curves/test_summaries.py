"""Pictures and histograms in event files: of real libraries, of long trainings, and of hostile programs."""

from __future__ import annotations

import io
import struct
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.curves import summaries
from local_backend.curves.summaries import LONGEST_EVENT, MOST_STEPS, of_descriptor

FILES = Path(__file__).parent.parent / "data" / "curves"
GOOD = (FILES / "pictures.tfevents").read_bytes()
PNG = b"\x89PNG\r\n\x1a\n" + bytes(60)


def read(content: bytes) -> dict[str, Any]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        return of_descriptor(file.fileno())


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step: int, *values: bytes) -> bytes:
    at = varint(1 << 3 | 1) + struct.pack("<d", 1.7e9)
    message = at + field(2, step) + field(5, b"".join(field(1, value) for value in values))
    return struct.pack("<Q", len(message)) + bytes(4) + message + bytes(4)


def picture(tag: str, content: bytes = PNG) -> bytes:
    return field(1, tag.encode()) + field(4, field(1, 1) + field(4, content))


def histogram(least: float, most: float, buckets: list[tuple[float, float]]) -> bytes:
    doubles = [struct.pack(f"<{len(buckets)}d", *numbers) for numbers in zip(*buckets, strict=True)]
    head = b"".join(varint(number << 3 | 1) + struct.pack("<d", value) for number, value in ((1, least), (2, most)))
    return field(1, b"h") + field(5, head + field(6, doubles[0]) + field(7, doubles[1]))


@pytest.mark.parametrize(("name", "tags"), [
    ("pictures", {"samples": [0, 10, 20]}), ("picture_tensors", {"grid 1": [0, 1], "grid 2": [0, 1]}), ("simple", {}),
])
def test_pictures_have_their_place_in_the_file(name: str, tags: dict[str, list[int]]) -> None:
    content = (FILES / f"{name}.tfevents").read_bytes()
    found = read(content)
    assert {tag: [step for step, _, _ in steps] for tag, steps in found["pictures"].items()} == tags
    for steps in found["pictures"].values():
        for _, at, size in steps:
            shown = content[at : at + size]
            assert shown.startswith(b"\x89PNG") and shown.endswith(b"IEND\xaeB`\x82")
    assert found["complete"]


@pytest.mark.parametrize(("buckets", "expected"), [
    ([(1.0, 2.0), (2.0, 2.0)], [0.0, 0.5, 1.0, 1.5, 2.0]),
    ([(0.0, 0.0), (2.0, 4.0), (1e308, 0.0)], [0.0, 0.5, 1.0, 1.5, 2.0]),
    ([(float("inf"), 1.0)], [0.0, 0.5, 1.0, 1.5, 2.0]),
])
def test_quantiles_are_taken_from_the_buckets(buckets: list[tuple[float, float]], expected: list[float]) -> None:
    assert read(event(3, histogram(0.0, 2.0, buckets)))["histograms"] == {"h": [[3, *expected]]}


def tensor_histogram(buckets: list[tuple[float, float, float]], plugin: bytes = b"histograms") -> bytes:
    """A histogram as tf.summary.histogram of TensorFlow 2 writes it: begin, end and count of each bucket."""
    shape = b"".join(field(2, field(1, size)) for size in (len(buckets), 3))
    content = b"".join(struct.pack("<3d", *bucket) for bucket in buckets)
    tensor = field(1, 2) + field(2, shape) + field(4, content)
    return field(1, b"h") + field(9, field(1, field(1, plugin))) + field(8, tensor)


def test_histograms_of_tensorflow_2_are_read() -> None:
    found = read(event(3, tensor_histogram([(0.0, 1.0, 2.0), (1.0, 2.0, 2.0)])))
    assert found["histograms"] == {"h": [[3, 0.0, 0.5, 1.0, 1.5, 2.0]]}
    assert read(event(3, tensor_histogram([(0.0, 1.0, 2.0)], b"other")) + event(
        4, tensor_histogram([])))["histograms"] == {}


@pytest.mark.parametrize("buckets", [[(1.0, 0.0)], [(float("nan"), 1.0)], [(1.0, float("inf"))], [(1.0, -5.0)]])
def test_a_histogram_without_quantiles_is_left_out(buckets: list[tuple[float, float]]) -> None:
    assert read(event(3, histogram(0.0, 2.0, buckets)) + event(4, picture("a")))["histograms"] == {}


def test_the_steps_of_a_long_training_are_spread_evenly() -> None:
    steps = [step for step, _, _ in read(b"".join(event(step, picture("a")) for step in range(1000)))["pictures"]["a"]]
    assert MOST_STEPS // 2 <= len(steps) <= MOST_STEPS + 1 and (steps[0], steps[-1]) == (0, 999)
    assert len({after - before for before, after in pairwise(steps[:-1])}) == 1


def test_many_tags_are_bounded() -> None:
    found = read(b"".join(event(1, *(picture(f"{many}-{tag}") for tag in range(50))) for many in range(50)))
    assert len(found["pictures"]) == 100


def test_an_event_that_is_too_long_is_passed_over() -> None:
    long = event(1, picture("long", PNG + bytes(LONGEST_EVENT)))
    assert list(read(long + event(2, picture("next")))["pictures"]) == ["next"]


def test_a_file_that_takes_too_long_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([50.0, 50.0, 100.0])
    monkeypatch.setattr(summaries.time, "process_time", lambda: next(times))
    found = read(event(1, picture("a")) + event(2, picture("a")))
    assert len(found["pictures"]["a"]) == 1 and not found["complete"]


def test_a_file_that_grows_is_read_up_to_its_last_whole_event() -> None:
    content = event(1, picture("a")) + event(2, picture("a"))
    for cut in range(len(content) // 2, len(content) - 4):
        found = read(content[:cut])
        assert [step for step, _, _ in found["pictures"]["a"]] == [1] and found["complete"]


@given(st.binary(max_size=400))
def test_any_bytes_are_read(content: bytes) -> None:
    found = read(content)
    assert set(found) == {"pictures", "histograms", "complete"}


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=12))
def test_damaged_files_are_read(at: int, damage: bytes) -> None:
    content = GOOD[:at] + damage + GOOD[at + len(damage):]
    for steps in read(content)["pictures"].values():
        for _, place, size in steps:
            assert io.BytesIO(content).seek(place) + size <= len(content)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_event_is_read(value: bytes, message: bytes) -> None:
    for one in (event(1, value + bytes(60)), event(1, picture("a", PNG + value), field(5, message))):
        assert set(read(one + event(2, picture("b")))) == {"pictures", "histograms", "complete"}
