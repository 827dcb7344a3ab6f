"""Downloads from a real S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from fetching_desk import Count, Desk, content
from file_servers import S3Server, s3_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_process import NotThere

from local_backend.data import transfer
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import FileFamily, SourceFile
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

LARGE = 3 * 2**20 + 7


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """One server for all tests of this module. Tests are skipped where none can run."""
    try:
        with s3_server() as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def bucket(server: S3Server) -> str:
    """A new bucket."""
    name = f"b{uuid.uuid4().hex}"
    server.client().create_bucket(Bucket=name)
    return name


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use parts of 0.5 MiB, and almost no pause before a retry."""
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


def put(server: S3Server, bucket: str, **files: bytes) -> None:
    """Write objects; `__` in a name stands for a slash."""
    for name, data in files.items():
        server.client().put_object(Bucket=bucket, Key=name.replace("__", "/"), Body=data)


def family(server: S3Server, **values: str) -> FileFamily:
    """Return the family of a connection to the server."""
    found = find("s3").open(server.values | values, loopback=True)
    assert isinstance(found, FileFamily)
    return found


@pytest.mark.parametrize("kind", ["s3", "cos", "Amazon S3"])
def test_a_folder_of_a_bucket_is_downloaded(server: S3Server, bucket: str, desk: Desk, kind: str) -> None:
    put(server, bucket, train__x__big=content(LARGE), train__empty=b"", other=b"no")
    server.client().put_object(Bucket=bucket, Key="train/x/", Body=b"")
    meter = Count()
    found = desk.get(kind, server.values, {"bucket": bucket, "path": "train/"}, meter=meter)
    assert desk.read() == {"x/big": content(LARGE), "empty": b""}
    assert (found.size, found.files, meter.bytes) == (LARGE, 2, LARGE)


def test_paths_are_accepted_in_every_form_of_a_client(server: S3Server, bucket: str, desk: Desk) -> None:
    put(server, bucket, **{"a.gz": b"1", "dir__b.json": b"22"})
    desk.get("s3", server.values, {"paths": "a.gz, dir/b.json", "bucket": bucket})
    assert desk.read() == {"a.gz": b"1", "dir/b.json": b"22"}
    version = desk.get("s3", server.values, {"file_name": "/dir/b.json", "bucket": bucket}, job=2).version
    assert desk.read(2) == {"b.json": b"22"} and version.startswith('"')
    desk.get("s3", server.values | {"bucket": bucket}, {}, job=3)
    assert desk.read(3) == desk.read(1)


def test_paths_are_normalized_unless_an_object_has_the_literal_name(server: S3Server, bucket: str, desk: Desk) -> None:
    put(server, bucket, **{"train__x__a": b"1", "b": b"22", "odd____c": b"literally", "odd__c": b"plainly"})
    for job, (path, there) in enumerate({
        "./train": {"x/a": b"1"}, ".//train//x/./a": {"a": b"1"}, "./train/x/": {"a": b"1"},
        "./train//x/a,./b": {"train/x/a": b"1", "b": b"22"}, "odd//c": {"c": b"literally"},
        "./odd/c": {"c": b"plainly"},
    }.items()):
        desk.get("s3", server.values, {"bucket": bucket, "paths": path}, job=job)
        assert desk.read(job) == there, path
    server.client().delete_object(Bucket=bucket, Key="odd//c")
    desk.get("s3", server.values, {"bucket": bucket, "paths": "."}, job=99)
    assert len(desk.read(99)) == 3
    with pytest.raises(DataError, match=f"'./no//such' in the bucket {bucket}"):
        desk.get("s3", server.values, {"bucket": bucket, "path": "./no//such"})


def test_a_listing_of_several_pages_is_downloaded_completely(
    server: S3Server, bucket: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    import botocore.paginate

    ask = botocore.paginate.PageIterator._make_request
    monkeypatch.setattr(botocore.paginate.PageIterator, "_make_request",
                        lambda self, arguments: ask(self, arguments | {"MaxKeys": 3}))
    put(server, bucket, **{f"n{number}": str(number).encode() for number in range(8)})
    assert desk.get("s3", server.values, {"bucket": bucket}).files == 8
    assert desk.read() == {f"n{number}": str(number).encode() for number in range(8)}


def test_an_object_replaced_during_the_download_is_never_mixed(
    server: S3Server, bucket: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_THREADS", 1)
    put(server, bucket, a=content(LARGE, 1))
    write, count = transfer._write, [0]

    def replaced(fd: int, data: bytes, at: int) -> None:
        count[0] += 1
        if count[0] == 3:
            put(server, bucket, a=content(LARGE, 2))
        write(fd, data, at)

    monkeypatch.setattr(transfer, "_write", replaced)
    meter = Count()
    desk.get("s3", server.values, {"bucket": bucket, "path": "a"}, meter=meter)
    assert desk.read() == {"a": content(LARGE, 2)}
    assert any("changed" in said for said in meter.said)


def test_a_wrong_location_is_rejected_with_the_reason(server: S3Server, bucket: str, desk: Desk) -> None:
    for location, words in (
        ({"bucket": bucket}, f"{bucket} is empty"),
        ({"bucket": bucket, "path": "no/such"}, f"'no/such' in the bucket {bucket}"),
        ({"bucket": "no-such-bucket"}, "no-such-bucket at http://127"),
        ({"path": "a"}, "'bucket'"),
        ({"bucket": "Not A Bucket", "path": "a"}, "Invalid bucket name"),
    ):
        with pytest.raises(DataError, match=words) as problem:
            desk.get("s3", server.values, location)
        assert not isinstance(problem.value, DataUnavailable)
    with pytest.raises(DataUnavailable, match=r"127.0.0.1:9"):
        desk.get("s3", server.values | {"url": "http://127.0.0.1:9"}, {"bucket": bucket})
    with pytest.raises(DataError, match="'acces_key'"):
        find("s3").open({"acces_key": "x"})


def test_a_key_that_is_no_valid_path_is_refused(server: S3Server, bucket: str, desk: Desk) -> None:
    server.client().put_object(Bucket=bucket, Key="a/../../../x", Body=b"x")
    with pytest.raises(DataError, match="file path"):
        desk.get("s3", server.values, {"bucket": bucket})
    assert desk.read() == {} and desk.kept() == []


def test_a_connection_can_be_tested(server: S3Server, bucket: str) -> None:
    family(server).test()
    family(server, bucket=bucket).test()
    with pytest.raises(DataError, match="no-such"):
        family(server, bucket="no-such").test()


def test_every_range_is_read_exactly(server: S3Server, bucket: str) -> None:
    data = content(300_000)
    put(server, bucket, a=data)
    found = family(server)
    [entry] = found.files({"bucket": bucket, "path": "a"})

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(data) - 1), st.integers(1, len(data)))
    def check(start: int, length: int) -> None:
        end = min(start + length, len(data))
        assert b"".join(found.read(entry, start, end)) == data[start:end]

    check()
    with pytest.raises(DataUnavailable, match="changed"):
        list(found.read(SourceFile("a", entry.key, entry.size, '"other"'), 0, 10))


def test_a_program_can_read_the_same_object_with_fsspec(server: S3Server, bucket: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra s3)")
    put(server, bucket, a__b=b"streamed")
    found = family(server)
    [entry] = found.files({"bucket": bucket, "path": "a"})
    with fsspec.open(found.url(entry), **found.storage()[1]) as file:
        assert file.read() == b"streamed"
