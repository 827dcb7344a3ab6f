"""The first rows of files, and the previewer's way to read a file of a server here and there."""

from __future__ import annotations

import gzip
import io
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.data.errors import DataError
from local_backend.data.kinds.base import Entry, FileFamily, Kind
from local_backend.data.previewer import Wish, _Remote, look
from local_backend.data.sample import ROWS, sample

TABLE = pa.table({"id": range(50), "name": [f"n{number}" for number in range(50)]})


class Memory(FileFamily):
    """A server with one file."""

    content = b""

    def test(self) -> None: ...

    def entries(self, location: Mapping[str, Any]) -> Iterator[Entry]: ...

    def storage(self) -> tuple[str, dict[str, Any]]: ...

    def read(self, entry: Entry, start: int, end: int | None) -> Generator[bytes, None, None]:
        wanted = self.content[start:end]
        yield from (wanted[at : at + 7] for at in range(0, len(wanted), 7))


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(TABLE, buffer)
    return buffer.getvalue()


def array(version: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros((3, 4), dtype="<f4"), version=version)
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("a.csv", b"a,b\n1,2\n3,", {"format": "csv", "rows": [["a", "b"], ["1", "2"]]}),
    ("a.CSV.gz", gzip.compress(b"a;b\n1;2\n"), {"format": "csv", "rows": [["a", "b"], ["1", "2"]]}),
    ("a.jsonl", b'{"a": 1}\nnonsense\n', {"format": "json", "rows": [['{"a": 1}']]}),
    ("a.txt", "ü\n".encode(), {"format": "text", "rows": [["ü"]]}),
    ("a.bin", b"\0\1", {"format": "binary"}), ("a", b"", {"format": "text", "rows": []}),
    *((f"{version}.npy", array((version, 0)), {
        "format": "numpy", "schema": [{"name": "3x4", "type": "<f4"}], "rowCount": 3}) for version in (1, 2, 3)),
])
def test_what_is_said_of_a_file(name: str, content: bytes, expected: dict[str, Any]) -> None:
    assert sample(name, io.BytesIO(content)) == expected


def test_parquet_tells_schema_and_rows() -> None:
    found = sample("x.parquet", io.BytesIO(parquet()))
    assert found["schema"] == [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]
    assert found["rowCount"] == 50 and found["rows"][1] == [1, "n1"] and len(found["rows"]) == ROWS


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_of_a_server_is_read_at_its_end_first(ranges: bool) -> None:
    family = Memory(Kind("m", "M", Memory), {})
    family.content = parquet()
    found = sample("x.parquet", _Remote(family, Entry("x", "x", len(family.content), "", ranges)))
    assert found["rowCount"] == 50


_READS = st.lists(st.tuples(st.integers(0, 450), st.integers(-1, 450)), max_size=8)


@given(st.binary(max_size=400), _READS, st.booleans())
def test_reading_here_and_there_is_reading(content: bytes, reads: list[tuple[int, int]], ranges: bool) -> None:
    family = Memory(Kind("m", "M", Memory), {})
    family.content = content
    file, real = _Remote(family, Entry("x", "x", len(content), "", ranges)), io.BytesIO(content)
    for at, size in reads:
        file.seek(at), real.seek(at)
        assert file.read(size) == real.read(size)
        assert file.tell() == real.tell()


def test_a_folder_shows_its_files_and_the_first_that_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.bin").write_bytes(b"\0" * 10)
    (tmp_path / "b" / "x.csv").write_text("a,b\n1,2\n")
    found = look(Wish(str(tmp_path)))
    assert (found["files"], found["bytes"], found["more"]) == (2, 18, False)
    assert [one["path"] for one in found["names"]] == ["a.bin", "b/x.csv"] and found["sample"] == "b/x.csv"
    (tmp_path / "b" / "x.csv").write_bytes(b"")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"c\.parquet cannot be read as what its name says"):
        look(Wish(str(tmp_path / "c.parquet")))
