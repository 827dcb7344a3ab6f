"""Properties of parts, file paths and the journal, for any input."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_backend.data.errors import DataError
from local_backend.data.listing import SourceFile, distinct_files
from local_backend.data.locations import path_below, paths_of
from local_backend.data.transfer import LONGEST, SMALLEST, ArrivingFile, Journal, part_ranges


@given(st.integers(0, 10**14))
def test_parts_cover_the_file_without_gaps(size: int) -> None:
    if size > 2**40:
        size %= 2**40
    parts = part_ranges(size, True)
    assert parts[0][0] == 0 and parts[-1][1] == size
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    assert all((end or 0) - start <= LONGEST for start, end in parts)
    assert all((end or 0) - start >= min(SMALLEST, size) for start, end in parts[:-1])


@pytest.mark.parametrize(("size", "ranges"), [(None, True), (None, False), (10**9, False)])
def test_a_file_without_size_or_ranges_is_one_part(size: int | None, ranges: bool) -> None:
    assert part_ranges(size, ranges) == [(0, None)]


@settings(max_examples=60)
@given(st.lists(st.text(min_size=1, max_size=20), max_size=6))
def test_every_accepted_path_lies_below_the_folder(paths: list[str]) -> None:
    try:
        found = distinct_files(SourceFile(path, f"key of {path}", 1) for path in paths)
    except DataError:
        return
    assert {entry.path for entry in found} == set(paths)
    for entry in found:
        assert not entry.path.startswith("/") and not {"", ".", ".."} & set(entry.path.split("/"))
        assert not any(other.path.startswith(f"{entry.path}/") for other in found)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a//b", "a/", ".", "", "a\0b", "a\nb", "x" * 256])
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(DataError, match="file path"):
        distinct_files([SourceFile(path, "key", 1)])


def test_a_path_that_is_a_file_and_a_folder_is_refused() -> None:
    with pytest.raises(DataError, match="'a'"):
        distinct_files([SourceFile("a", "a", 1), SourceFile("a/b", "a/b", 1)])
    with pytest.raises(DataError, match="no files"):
        distinct_files([])


def test_paths_of_a_location_are_parsed_in_every_form() -> None:
    assert paths_of({"paths": "a.gz, dir/b.json"}) == ["a.gz", "dir/b.json"]
    assert paths_of({"path": "/a"}) == paths_of({"file_name": "a"}) == paths_of({"paths": ["a", ""]}) == ["a"]
    assert paths_of({}) == paths_of({"paths": ""}) == paths_of({"paths": "/"}) == []
    with pytest.raises(DataError):
        paths_of({"paths": [1]})


def test_files_lie_at_their_path_below_the_requested_folder() -> None:
    assert path_below("train", False, "train/a/b.csv") == "a/b.csv"
    assert path_below("train/a.csv", False, "train/a.csv") == "a.csv"
    assert path_below("train", True, "train/a.csv") == "train/a.csv"
    assert path_below("", False, "train/a.csv") == "train/a.csv"


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.integers(1, 200))
def test_parts_in_any_order_make_the_file_and_its_checksum(
    tmp_path_factory: pytest.TempPathFactory, order: random.Random, size: int
) -> None:
    folder, data = tmp_path_factory.mktemp("arriving"), order.randbytes(size)
    file = ArrivingFile(0, SourceFile("a", "a", size), folder / "0", folder / "files" / "a")
    file.parts = [(at, min(at + 7, size)) for at in range(0, size, 7)]
    numbers = list(range(len(file.parts)))
    order.shuffle(numbers)
    for number in numbers:
        start, end = file.parts[number]
        with open(file.open(), "r+b", buffering=0, closefd=False) as target:
            target.seek(start)
            target.write(data[start:end])
        assert file.add(number) == (number == numbers[-1])
    found = file.finish()
    assert (found.size, found.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert file.target.read_bytes() == data


@settings(max_examples=40)
@given(st.integers(0, 200))
def test_a_truncated_journal_never_reports_a_missing_part_as_done(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    files = [ArrivingFile(0, SourceFile("a", "a", 3 * SMALLEST), folder / "0", folder / "a")]
    journal = Journal(folder / "journal", {"boot": "b"})
    assert journal.read(files) == {}
    journal.start()
    files[0].place.touch()
    journal.part(files[0], 1)
    journal.part(files[0], 0)
    journal.close()
    text = (folder / "journal").read_bytes()
    (folder / "journal").write_bytes(text[:length])
    again = [ArrivingFile(0, SourceFile("a", "a", 3 * SMALLEST), folder / "0", folder / "a")]
    later = Journal(folder / "journal", {"boot": "b"})
    assert later.read(again) == {}
    assert again[0].done in (set(), {1}, {0, 1})
    later.start()
    later.part(again[0], 2)
    later.close()
    other = Journal(folder / "journal", {"boot": "another"})
    last = [ArrivingFile(0, SourceFile("a", "a", 3 * SMALLEST), folder / "0", folder / "a")]
    assert other.read(last) == {} and last[0].done == set()
