"""Samples of the first rows of files, and random access of the previewer to a file on a server."""

from __future__ import annotations

import errno
import gzip
import io
import os
import resource
import socket
import struct
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import PATIENCE

from local_backend.data import registry, storage
from local_backend.data.errors import DataError
from local_backend.data.kind import FileFamily, Kind, SourceFile
from local_backend.data.probe import ProbeRequest, _Remote, look
from local_backend.data.sample import ROWS, plain, sample

TABLE = pa.table({"id": range(50), "name": [f"n{number}" for number in range(50)]})


class Memory(FileFamily):
    """A server with one file."""

    content = b""

    def test(self) -> None: ...

    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]: ...

    def storage(self) -> tuple[str, dict[str, Any]]: ...

    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        wanted = self.content[start:end]
        yield from (wanted[at : at + 7] for at in range(0, len(wanted), 7))


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(TABLE, buffer)
    return buffer.getvalue()


def array(version: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.arange(12, dtype="<f4").reshape(3, 4) / 2, version=version)
    return buffer.getvalue()


def saved(*arrays: np.ndarray, **named: np.ndarray) -> bytes:
    """Return one array as NumPy saves it, or several arrays in an archive."""
    buffer = io.BytesIO()
    np.save(buffer, *arrays) if arrays else np.savez_compressed(buffer, **named)
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("a.csv", b"a,b\n1,2\n3,", {"format": "csv", "rows": [["a", "b"], ["1", "2"], ["3", ""]]}),
    ("a.csv", b"M\xfcller,K\xf6ln\n" * 20, {"format": "csv", "rows": [["Müller", "Köln"]] * (ROWS + 1),
                                           "encoding": "latin-1"}),
    ("a.csv", b"M\xfcller", {"format": "csv", "rows": [["M\xfcller"]], "encoding": "latin-1"}),
    ("a.txt", b"caf\xe9", {"format": "text", "rows": [["caf\xe9"]], "encoding": "latin-1"}),
    # The sample ends within a character.
    ("a.txt", b"x" + "é".encode() * 40_000, {"format": "text", "rows": [[plain("x" + "é" * 40_000)]]}),
    ("a.txt", b"\xff\x01\x02", {"format": "binary"}),
    ("a.CSV.gz", gzip.compress(b"a;b\n1;2\n", mtime=0), {"format": "csv", "rows": [["a", "b"], ["1", "2"]]}),
    ("a.jsonl", b'{"a": 1}\r\n\n[2]', {"format": "json", "rows": [['{"a": 1}'], ["[2]"]]}),
    ("a.ndjson", b'"' + b"x" * 2**17 + b'"\n', {"format": "json", "rows": []}),
    ("a.jsonl", b"1234\n" * 20000, {"format": "json", "rows": [["1234"]] * ROWS}),
    ("a.txt", "ü\n".encode(), {"format": "text", "rows": [["ü"]]}),
    ("a.bin", b"\0\1", {"format": "binary"}), ("a", b"", {"format": "text", "rows": []}),
    *((f"{version}.npy", array((version, 0)), {
        "format": "numpy", "shape": [3, 4], "dtype": "float32", "rowCount": 3,
        "rows": [[0.0, 0.5, 1.0, 1.5], [2.0, 2.5, 3.0, 3.5], [4.0, 4.5, 5.0, 5.5]]}) for version in (1, 2, 3)),
])
def test_a_sample_describes_a_file(name: str, content: bytes, expected: dict[str, Any]) -> None:
    assert sample(name, io.BytesIO(content)) == expected


@pytest.mark.parametrize(("content", "expected"), [
    ("a;b\n1,5;2,5\n", [["a", "b"], ["1,5", "2,5"]]), ("a\tb, c\n1\t2\n", [["a", "b, c"], ["1", "2"]]),
    ("one|two\nx|y\n", [["one", "two"], ["x", "y"]]), ("text, with a comma\n\nword\n", None), ("word\n", [["word"]]),
    ('"a;b";c\n"1;2";3\n', [["a;b", "c"], ["1;2", "3"]]),
])
def test_the_delimiter_of_csv_is_found(content: str, expected: list[list[str]] | None) -> None:
    rows = sample("a.csv", io.BytesIO(content.encode()))["rows"]
    assert rows == (expected or [["text", " with a comma"], [], ["word"]])


def test_a_truncated_last_line_is_omitted() -> None:
    line = b"0123456789" * 10 + b"\n"
    for content in (line * 3 + b"end", gzip.compress(line * 3 + b"end", mtime=0)):
        assert sample("a", io.BytesIO(content))["rows"][-1] == ["end"]
    wide = b"w" * 9000 + b"\n"
    for content in (wide * 9, gzip.compress(wide * 9, mtime=0)):
        assert [len(row[0]) for row in sample("a", io.BytesIO(content))["rows"]] == [200] * 7


@pytest.mark.parametrize(("content", "told"), [
    (b'{"a": 1}\n{"a": 2}\nnot json\n', "line 3 is not JSON: not json"),
    (b'{"a": 1}\n{"a":', 'line 2 is not JSON: {"a":'),
    (b"1\n" * 15 + b"x\n", "line 16 is not JSON: x"), (b"[" * 5000 + b"\n", r"line 1 is not JSON: \[\["),
])
def test_a_line_that_is_not_json_is_reported(tmp_path: Path, content: bytes, told: str) -> None:
    """The preview fails because the program of a job would fail on the line."""
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=f"^x.jsonl .*: {told}"):
        look(ProbeRequest(str(tmp_path)))


@pytest.mark.parametrize("array", [
    np.arange(30, dtype=">i2"), np.array([True, False]), np.array(2.5), np.array(["a", "üb"]), np.array([b"x", b"yz"]),
    np.array([np.inf, 0.25], dtype="<f2"), np.arange(5, dtype="uint64"), np.zeros((0, 3)), np.zeros((3, 0)),
])
def test_arrays_are_read_as_numpy_reads_them(array: np.ndarray) -> None:
    found = sample("a.npy", io.BytesIO(saved(array)))
    names = {"U": "str", "S": "bytes"}
    assert (found["shape"], found["dtype"]) == (list(array.shape), names.get(array.dtype.kind, array.dtype.name))
    values = [one.decode() if isinstance(one, bytes) else one for one in np.atleast_1d(array)[:ROWS].tolist()]
    assert found["rows"] == ([[plain(one)] for one in values] if array.size else [])


def test_a_sample_of_a_wide_array_shows_its_beginning() -> None:
    images = np.arange(20 * 28 * 28, dtype="<i4").reshape(20, 28, 28)
    found = sample("a.npy", io.BytesIO(saved(images)))
    assert found["rows"] == [[*row.ravel()[:16].tolist(), "…"] for row in images[:ROWS]] and found["rowCount"] == 20
    assert len(sample("a.npy", io.BytesIO(saved(np.zeros((3, 2**18)))))["rows"]) == 1


@pytest.mark.parametrize("array", [
    np.asfortranarray(np.zeros((2, 3))), np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8", (2,))]),
    np.array([{}, None]), np.zeros(2, dtype="<c8"), np.zeros(2, dtype="<M8[s]"),
])
def test_a_sample_of_other_arrays_shows_only_shape_and_type(array: np.ndarray) -> None:
    found = sample("a.npy", io.BytesIO(saved(array)))
    expected = "a int32, b float64" if array.dtype.names else array.dtype.name
    assert (found["shape"], found["dtype"], found["rows"]) == (list(array.shape), expected, [])


class Careful(io.BytesIO):
    """A file that refuses large reads, because a real file allocates the requested size."""

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None and 0 <= size <= 2**20
        return super().read(size)


@pytest.mark.parametrize("descr", ["|S99999999999", "<U99999999999", "|S1048577"])
def test_a_header_cannot_make_the_server_allocate_memory(descr: str) -> None:
    header = repr({"descr": descr, "fortran_order": False, "shape": (10**12, 10**12)}).encode()
    found = sample("a.npy", Careful(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header))
    expected = "str" if "U" in descr else "bytes"
    assert (found["shape"], found["dtype"], found["rows"]) == ([10**12] * 2, expected, [])


def test_a_header_is_not_read_if_it_is_too_long() -> None:
    with pytest.raises(ValueError, match="too long"):
        sample("a.npy", Careful(b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1) + b"{"))


def test_an_archive_shows_all_its_arrays_and_rows_of_the_first() -> None:
    content = saved(x=np.arange(4.0).reshape(2, 2), y=np.array([1, 2], dtype="<i8"))
    assert sample("a.npz", io.BytesIO(content)) == {
        "format": "numpy archive", "rows": [[0.0, 1.0], [2.0, 3.0]],
        "arrays": [{"name": "x", "shape": [2, 2], "dtype": "float64"}, {"name": "y", "shape": [2], "dtype": "int64"}]}


@pytest.mark.parametrize(("name", "content"), [
    ("a.npy", b""), ("a.npy", b"\x93NUMPY"), ("a.npy", b"\x93NUMPY\x01\0\xff\xff" + b"(" * 65535),
    ("a.npy", b"\x93NUMPY\x01\0\x02\0{}"), ("a.npy", array((1, 0))[:-1]), ("a.npz", b"PK"), ("a.npz", array((1, 0))),
])
def test_an_invalid_array_file_is_refused(name: str, content: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        sample(name, io.BytesIO(content))


def test_a_parquet_sample_shows_schema_and_rows() -> None:
    found = sample("x.parquet", io.BytesIO(parquet()))
    assert found["schema"] == [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]
    assert found["rowCount"] == 50 and found["rows"][1] == [1, "n1"] and len(found["rows"]) == ROWS


@pytest.mark.parametrize("ranges", [True, False])
def test_a_parquet_file_on_a_server_is_sampled_with_and_without_ranges(ranges: bool) -> None:
    family = Memory(Kind("m", "M", Memory), {})
    family.content = parquet()
    found = sample("x.parquet", _Remote(family, SourceFile("x", "x", len(family.content), "", ranges)))
    assert found["rowCount"] == 50


_READS = st.lists(st.tuples(st.integers(0, 450), st.integers(-1, 450)), max_size=8)


@given(st.binary(max_size=400), _READS, st.booleans())
def test_random_reads_return_the_bytes_of_the_file(content: bytes, reads: list[tuple[int, int]], ranges: bool) -> None:
    family = Memory(Kind("m", "M", Memory), {})
    family.content = content
    file, real = _Remote(family, SourceFile("x", "x", len(content), "", ranges)), io.BytesIO(content)
    for at, size in reads:
        file.seek(at), real.seek(at)
        assert file.read(size) == real.read(size)
        assert file.tell() == real.tell()


def test_a_preview_of_a_folder_samples_the_first_displayable_file(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.bin").write_bytes(b"\0" * 10)
    (tmp_path / "b" / "x.csv").write_text("a,b\n1,2\n")
    found = look(ProbeRequest(str(tmp_path)))
    assert (found["files"], found["bytes"], found["more"]) == (2, 18, False)
    assert [one["path"] for one in found["names"]] == ["a.bin", "b/x.csv"] and found["sample"] == "b/x.csv"
    assert found["rows"] == [["a", "b"], ["1", "2"]] and "unreadable" not in found


def test_a_damaged_file_is_reported_also_beside_a_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 not really")
    for path in (tmp_path, tmp_path / "c.parquet"):
        with pytest.raises(DataError, match=r"^c\.parquet cannot be read in the format of its extension"):
            look(ProbeRequest(str(path)))


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    """A preview sees the files that a program sees when it follows links."""
    (tmp_path / "five").mkdir()
    for number in range(5):
        (tmp_path / "five" / f"{number}.txt").write_text("x\n")
    there = tmp_path / "odd"
    (there / "deep").mkdir(parents=True)
    for name, target in (("pq", "../five"), ("again", "pq"), ("self", "."), ("deep/up", "../.."),
                         ("one.txt", "pq/1.txt")):
        (there / name).symlink_to(target)
    found = look(ProbeRequest(str(there)))
    assert (found["files"], found["bytes"]) == (5 + 5 + 5 + 1, 2 * 16) and "unreadable" not in found
    assert [one["path"] for one in found["names"]][:2] == ["one.txt", "again/0.txt"]
    assert look(ProbeRequest(str(there / "pq")))["files"] == 5
    assert look(ProbeRequest(str(there / "one.txt")))["files"] == 1


def test_unreadable_files_are_counted_and_named_and_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d" / "closed").mkdir(parents=True)
    for name in ("a.csv", "b.csv", "secret.csv", "closed/x.csv", "z.csv"):
        (tmp_path / "d" / name).write_text("a,b\n1,2\n")
    (tmp_path / "d" / "gone").symlink_to("nowhere")
    (tmp_path / "d" / "round").symlink_to("round")

    def refuse(path: Any) -> None:
        if str(path).endswith(("closed", "a.csv")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # Replace the calls, because root can read every file.
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *more, **named: refuse(path) or real(path, *more, **named))
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("secret.csv"))
    found = look(ProbeRequest(str(tmp_path / "d")))
    assert (found["files"], found["sample"], found["unreadable"]) == (3, "b.csv", 5)
    assert {one["path"]: one["message"] for one in found["unreadableNames"]} == {
        "gone": "a broken link", "round": os.strerror(errno.ELOOP), "secret.csv": "Permission denied",
        "closed": "Permission denied", "a.csv": "Permission denied"}
    for name in ("closed", "secret.csv", "nowhere"):
        with pytest.raises(DataError, match=f"{name}: [A-Z]"):
            look(ProbeRequest(str(tmp_path / "d" / name)))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "way").symlink_to("../d/closed")
    with pytest.raises(DataError, match=r"links: way: Permission denied$"):
        look(ProbeRequest(str(tmp_path / "links")))


def test_special_files_are_refused_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # socket paths have a length limit
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    for path, what in ((tmp_path / "pipe", "a named pipe"), (tmp_path / "socket", "a socket"), ("/dev/zero", "a dev")):
        with pytest.raises(DataError, match=f"{path} is {what}"):
            look(ProbeRequest(str(path)))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert look(ProbeRequest(str(tmp_path)))["files"] == 1


def test_a_preview_does_not_follow_links_into_volumes_of_other_users(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "x.csv").write_text("secret\n")
    (tmp_path / "d").mkdir()
    for name, target in (("way", "volume"), ("file.csv", "volume/x.csv")):
        (tmp_path / "d" / name).symlink_to(tmp_path / target)
    (tmp_path / "d" / "y.csv").write_text("mine\n")
    found = look(ProbeRequest(str(tmp_path / "d"), closed=[str(tmp_path / "volume")]))
    assert (found["files"], found["unreadable"]) == (1, 2) and "secret" not in str(found["rows"])
    assert look(ProbeRequest(str(tmp_path), closed=[str(tmp_path / "volume")]))["files"] == 1


def test_a_preview_does_not_follow_links_out_of_the_data_of_the_server(tmp_path: Path) -> None:
    for folder in ("data", "data/d", "volume", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text(f"in {folder}\n")
    for name, target in (("way", "elsewhere"), ("file.csv", "elsewhere/x.csv"), ("lake", "volume"), ("up", "data"),
                         ("two", "data/d/way")):
        (tmp_path / "data" / "d" / name).symlink_to(tmp_path / target)
    places = [str(tmp_path / "data"), str(tmp_path / "volume")]
    found = look(ProbeRequest(str(tmp_path / "data" / "d"), within=places))
    assert {one["path"] for one in found["names"]} == {"x.csv", "lake/x.csv", "up/x.csv"}
    assert {one["path"] for one in found["unreadableNames"]} == {"way", "file.csv", "two"}
    assert "elsewhere" not in str(found["rows"])
    for path in ("way", "file.csv", "way/x.csv"):
        with pytest.raises(DataError, match="leads out of"):
            look(ProbeRequest(str(tmp_path / "data" / "d" / path), within=places))


@pytest.mark.parametrize("swapped", ["sub", "sub/x.csv"])
def test_a_link_that_appears_after_the_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    for folder in ("data/sub", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.csv").write_text(f"in {folder}\n")
    target, check = tmp_path / "data" / swapped, storage.DataSight.trouble

    def swapping(sight: storage.DataSight, real: str) -> str:
        why = check(sight, real)
        if real == str(target) and not target.is_symlink():
            target.rename(tmp_path / "moved")
            target.symlink_to(tmp_path / "elsewhere" / ("x.csv" if swapped.endswith("csv") else ""))
        return why

    monkeypatch.setattr(storage.DataSight, "trouble", swapping)
    try:
        found = look(ProbeRequest(str(tmp_path / "data"), within=[str(tmp_path / "data")]))
    except DataError as problem:
        assert "leads out of" in str(problem)
    else:
        assert found["unreadable"] and "elsewhere" not in str(found)
    assert target.is_symlink(), "the test did not swap the link in"


def test_a_preview_fails_where_a_job_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Kind("m", "M", Memory)
    monkeypatch.setattr(registry, "find", lambda name: kind)
    listed = [SourceFile(path, path, 3) for path in ("same", "same/inner.txt")]
    monkeypatch.setattr(Memory, "files", lambda self, location: iter(listed))
    monkeypatch.setattr(Memory, "content", b"abc")
    with pytest.raises(DataError, match="'same'"):
        look(ProbeRequest(kind="m", access="download"))
    monkeypatch.setattr(Memory, "storage", lambda self: ("memory", {}))
    assert look(ProbeRequest(kind="m", access="stream"))["files"] == 2, "streamed names cannot conflict on a disk"

    def refuse(self: Any, entry: SourceFile) -> str:
        raise DataError("programs cannot stream")

    monkeypatch.setattr(Memory, "url", refuse)
    with pytest.raises(DataError, match="programs cannot stream"):
        look(ProbeRequest(kind="m", access="stream"))
    listed.clear()
    with pytest.raises(DataError, match="no files"):
        look(ProbeRequest(kind="m"))


@pytest.mark.integration
def test_a_small_file_that_unpacks_to_gigabytes_takes_bounded_memory(tmp_path: Path) -> None:
    """One row repeats a text of 1 MiB, so that this process needs no gigabytes to write it."""
    text = pa.array(["x" * 2**20], pa.large_string())
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 2**13, pa.int32()), text)
    table = pa.table({"a": pa.ListArray.from_arrays(pa.array([0, len(repeated)], pa.int32()), repeated)})
    pq.write_table(table, tmp_path / "large.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "large.parquet").stat().st_size < 2**16
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    found = ProbeRequest(str(tmp_path)).run(PATIENCE)
    assert found["ok"] is False and "2,048 MiB" in found["message"]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 3 << 20)
