"""Files of a real HDFS."""

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

#: Three blocks, and some of a fourth.
LARGE = 3 * 2**20 + 7


@pytest.fixture(scope="module")
def server() -> Iterator[HdfsServer]:
    """One for all tests here; the tests are skipped where there can be none."""
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
    """Parts of half a MiB, and no pauses worth the name before another attempt."""
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


@pytest.fixture
def values(server: HdfsServer) -> dict[str, str]:
    """Values of a connection to it."""
    return {"url": server.url, "username": "ada"}


def test_folders_and_files(values: dict[str, str], desk: Desk) -> None:
    meter = Count()
    found = desk.get("hdfs", values, {"path": "data/set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/empty": b"", "ä ☃": b"odd", "b+c&d=?#": b""}
    assert (found.size, meter.bytes) == (LARGE + 3, LARGE + 3)
    desk.get("hdfs", values, {"paths": "/data/set/big, data/other"}, job=2)
    assert desk.read(2) == {"data/set/big": content(LARGE), "data/other": b"no"}
    desk.get("hdfs", values | {"folder": "/data/set/"}, {"paths": "x/empty"}, job=3)
    assert desk.read(3) == {"empty": b""}


def test_a_file_that_was_written_anew_is_fetched_anew(server: HdfsServer, values: dict[str, str], desk: Desk) -> None:
    for number, data in enumerate((b"old", b"new")):
        server.put("/again/a", data, overwrite="true")
        desk.get("hdfs", values, {"path": "again"}, job=number)
        assert desk.read(number) == {"a": data}


def test_what_is_wrong_is_said(values: dict[str, str], desk: Desk) -> None:
    for location, words in (({"path": "no/such"}, "no/such does not exist"), ({"path": "half/open/closed"}, "ada"),
                            ({"path": "half"}, "denies access to half .*user=ada")):
        with pytest.raises(DataError, match=words) as problem:
            desk.get("hdfs", values, location)
        assert not isinstance(problem.value, DataUnavailable)


def test_a_server_that_does_not_answer_and_a_token_that_nobody_sees(desk: Desk) -> None:
    with pytest.raises(DataUnavailable, match="refused") as problem:
        desk.get("hdfs", {"url": "http://127.0.0.1:1", "token": "T0ken"}, {"path": "data"})
    assert "T0ken" not in str(problem.value)


def test_a_connection_is_tested(values: dict[str, str]) -> None:
    find("hdfs").open(values, loopback=True).test()
    with pytest.raises(DataError, match="denies access"):
        find("hdfs").open(values | {"folder": "half/open/closed"}, loopback=True).test()
    with pytest.raises(DataError, match="does not connect to the address"):
        find("hdfs").open(values).test()


def test_a_program_can_read_the_same_by_itself(values: dict[str, str]) -> None:
    import fsspec

    family = find("hdfs").open(values, loopback=True)
    [entry] = family.files({"path": "data/other"})  # type: ignore[attr-defined]
    with fsspec.open(family.url(entry), **family.storage()[1]) as file:  # type: ignore[attr-defined]
        assert file.read() == b"no"
