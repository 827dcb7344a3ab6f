"""Random malicious archives: archives of submissions, and zips of results."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import counted, tried
from fake_server import FakeServer, Reply
from hypothesis import strategies as st
from in_process import check

from local_backend.settings import Limits
from local_backend.submit import unpacker

PARTS = st.sampled_from([
    "d", "a", "b.py", "..", ".", "", "A", "\u00fc", "u\u0308", "x" * 256, "a\nb", "\u202e", "._x", ".DS_Store", "C:",
    "~", "a\\..\\b", "\udcff", "\x1b[2J", "con", "a" * 90,
]) | st.text(max_size=4)
NAMES = st.builds(lambda start, parts, end: start + "/".join(parts) + end, st.sampled_from(["", "", "", "/", "./"]),
                  st.lists(PARTS, max_size=5), st.sampled_from(["", "", "/"]))
KINDS = st.sampled_from([tarfile.REGTYPE] * 6 + [tarfile.DIRTYPE] * 3 + [
    tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.CONTTYPE,
    tarfile.GNUTYPE_SPARSE, b"Z"])
PAX = st.dictionaries(
    st.sampled_from(["path", "linkpath", "size", "mtime", "uid", "GNU.sparse.map", "GNU.sparse.size",
                     "GNU.sparse.major", "GNU.sparse.name", "hdrcharset", "comment"]),
    st.sampled_from(["../../x", "/x", "-1", "0", "1", "99999999999999999999", "nan", "0,1", "BINARY", "d/y", "\u00fc"]),
    max_size=2)
MEMBERS = st.lists(st.tuples(NAMES, KINDS, st.binary(max_size=20), st.integers(0, 0o7777), NAMES, PAX), max_size=5)
#: Positions of changed bytes, as fractions of the whole, and their new values.
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)
LIMITS = {"bytes": 10_000, "files": 20, "ratio": Limits().unpack_ratio, "seconds": 10, "memory": 1 << 30}
CANARY = b"nobody may change this"


def tar_of(members: list[tuple[Any, ...]], form: int) -> bytes:
    """Return a tar archive, without members that tarfile cannot write."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, kind, content, mode, link, headers in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.linkname, info.pax_headers = kind, mode, link, headers
            info.size = len(content) if kind in tarfile.REGULAR_TYPES else 0
            try:
                archive.addfile(info, io.BytesIO(content) if info.size else None)
            except (ValueError, UnicodeError):
                continue
    return buffer.getvalue()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to unpack into; canary files beside and above it must not change."""
    monkeypatch.setattr(unpacker.Tree, "make_durable", lambda _tree: None)  # thousands of flushes take minutes
    target = tmp_path / "up" / "target"
    target.parent.mkdir()
    for folder in (tmp_path, target.parent):
        (folder / "canary").write_bytes(CANARY)
    yield target
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} <= {
        "canary", "up", "up/canary", "up/a.tar"}
    assert (tmp_path / "canary").read_bytes() == (target.parent / "canary").read_bytes() == CANARY


def unpack(content: bytes, target: Path) -> int:
    """Unpack an archive, check the result, remove it, and return the exit code."""
    archive = target.parent / "a.tar"
    archive.write_bytes(content)
    target.mkdir()
    code, said = unpacker.run(str(archive), str(target), LIMITS)
    assert code in (unpacker.DONE, unpacker.REFUSED), (code, said)
    assert said.isprintable() and len(said) < 400, said
    assert {path.name for path in target.parent.iterdir()} == {"a.tar", "canary", "target"}
    assert {path.name for path in target.parent.parent.iterdir()} == {"canary", "up"}
    written = 0
    for path in target.rglob("*"):
        found = path.lstat()
        assert stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1), path
        assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX), path
        written += found.st_size if stat.S_ISREG(found.st_mode) else 0
    assert written <= LIMITS["bytes"]
    shutil.rmtree(target)
    return code


FORMS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


@counted("archives")
def test_any_archive_is_unpacked_safely_or_refused(place: Path, cases: int) -> None:
    codes = set()

    @tried(cases, MEMBERS, FORMS, st.booleans())
    def _case(members: list[tuple[Any, ...]], form: int, zipped: bool) -> None:
        content = tar_of(members, form)
        codes.add(unpack(gzip.compress(content, 1) if zipped else content, place))

    assert codes == {unpacker.DONE, unpacker.REFUSED}, "expected accepted and refused archives"


@counted("damaged archives")
def test_any_damaged_archive_is_unpacked_safely_or_refused(place: Path, cases: int) -> None:
    good = tar_of([
        ("d/", tarfile.DIRTYPE, b"", 0o755, "", {}),
        ("d/" + "n" * 120, tarfile.REGTYPE, b"x" * 600, 0o644, "", {"comment": "\u00fc"}),
        ("d/b.py", tarfile.REGTYPE, b"print(1)\n", 0o755, "", {}),
    ], tarfile.PAX_FORMAT)
    zipped = gzip.compress(good, 1)

    @tried(cases, st.sampled_from([good, zipped]), CHANGES, st.floats(0, 1))
    def _case(content: bytes, changes: list[tuple[float, int]], cut: float) -> None:
        damaged = bytearray(content)
        # Most of a tar archive of small files is padding: change bytes at the start, where the data is.
        for where, byte in changes:
            damaged[int(where * min(len(damaged), 4096))] = byte
        unpack(bytes(damaged[: int(len(damaged) * (0.5 + cut))]), place)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@counted("zips of results")
def test_any_zip_of_results_is_unpacked_inside_its_folder(desk: Path, standing_in: FakeServer, cases: int) -> None:
    above = desk.parent.parent
    before = {path for path in above.rglob("*") if not path.is_relative_to(desk)}
    target = desk / "out"
    modes = st.sampled_from([0, stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777, stat.S_IFIFO])
    names = NAMES.filter(lambda name: "\udcff" not in name)
    members = st.lists(st.tuples(names, modes, st.binary(max_size=20)), max_size=4)

    @tried(cases, members, CHANGES)
    def _case(members: list[tuple[str, int, bytes]], changes: list[tuple[float, int]]) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, mode, content in members:
                info = zipfile.ZipInfo("x")
                info.filename, info.external_attr = name, mode << 16
                archive.writestr(info, content)
        content = bytearray(buffer.getvalue())
        for where, byte in changes:
            content[int(where * len(content))] = byte
        standing_in.results["w-1"] = Reply(200, bytes(content), {"Content-Disposition": "attachment;filename=r.zip"})
        shutil.rmtree(target, ignore_errors=True)  # of a case that failed
        target.mkdir()
        check("--exec-trainresult", "w-1", "--unpack", "--to", "out")
        assert {path for path in above.rglob("*") if not path.is_relative_to(desk)} == before
        assert {path.name for path in desk.iterdir()} <= {"out", "model"}
        assert not [path for path in target.rglob("*") if os.path.islink(path) or not (path.is_dir() or path.is_file())]
