"""Downloads from a real HDFS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fetching_desk import Count, Desk, content
from hdfs_server import HdfsServer, hdfs_server
from server_process import NotThere

from local_backend.data import transfer
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

#: 3 blocks and a part of a fourth.
LARGE = 3 * 2**20 + 7


@pytest.fixture(scope="module")
def server() -> Iterator[HdfsServer]:
    """One server for all tests of this module. Tests are skipped where none can run."""
    try:
        with hdfs_server() as found:
            found.put("/data/set/big", content(LARGE))
            found.put("/data/set/x/empty", b"")
            found.put("/data/set/ä ☃", b"odd")
            found.put("/data/set/b+c&d=?#", b"")
            found.put("/data/other", b"no")
            found.put("/half/open/a", b"a")
            found.put("/half/open/closed/b", b"b")
            found.close("/half/open/closed")
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use parts of 0.5 MiB, and almost no pause before a retry."""
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


@pytest.fixture
def values(server: HdfsServer) -> dict[str, str]:
    """The values of a connection to the server."""
    return {"url": server.url, "username": "ada"}


def test_folders_and_files_are_downloaded(values: dict[str, str], desk: Desk) -> None:
    meter = Count()
    found = desk.get("hdfs", values, {"path": "data/set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/empty": b"", "ä ☃": b"odd", "b+c&d=?#": b""}
    assert (found.size, meter.bytes) == (LARGE + 3, LARGE + 3)
    desk.get("hdfs", values, {"paths": "/data/set/big, data/other"}, job=2)
    assert desk.read(2) == {"data/set/big": content(LARGE), "data/other": b"no"}
    desk.get("hdfs", values | {"folder": "/data/set/"}, {"paths": "x/empty"}, job=3)
    assert desk.read(3) == {"empty": b""}


def test_a_rewritten_file_is_fetched_again(server: HdfsServer, values: dict[str, str], desk: Desk) -> None:
    for number, data in enumerate((b"old", b"new")):
        server.put("/again/a", data, overwrite="true")
        desk.get("hdfs", values, {"path": "again"}, job=number)
        assert desk.read(number) == {"a": data}


def test_a_wrong_location_is_rejected_with_the_reason(values: dict[str, str], desk: Desk) -> None:
    for location, words in (({"path": "no/such"}, "no/such does not exist"), ({"path": "half/open/closed"}, "ada"),
                            ({"path": "half"}, "denies access to half .*user=ada")):
        with pytest.raises(DataError, match=words) as problem:
            desk.get("hdfs", values, location)
        assert not isinstance(problem.value, DataUnavailable)


def test_an_unreachable_server_is_reported_without_the_token(desk: Desk) -> None:
    with pytest.raises(DataUnavailable, match="refused") as problem:
        desk.get("hdfs", {"url": "http://127.0.0.1:1", "token": "T0ken"}, {"path": "data"})
    assert "T0ken" not in str(problem.value)


def test_a_connection_can_be_tested(values: dict[str, str]) -> None:
    find("hdfs").open(values, loopback=True).test()
    with pytest.raises(DataError, match="denies access"):
        find("hdfs").open(values | {"folder": "half/open/closed"}, loopback=True).test()
    with pytest.raises(DataError, match="does not connect to the address"):
        find("hdfs").open(values).test()


def test_a_program_can_read_the_same_file_with_fsspec(values: dict[str, str]) -> None:
    import fsspec

    family = find("hdfs").open(values, loopback=True)
    [entry] = family.files({"path": "data/other"})  # type: ignore[attr-defined]
    with fsspec.open(family.url(entry), **family.storage()[1]) as file:  # type: ignore[attr-defined]
        assert file.read() == b"no"
