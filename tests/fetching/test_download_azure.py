"""Blobs of Azurite."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from fetching_desk import Count, Desk, content
from file_servers import AzureServer, NotThere, azure_server

from local_backend.data import parts
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kinds import find

LARGE = 2**20 + 7


@pytest.fixture(scope="module")
def server() -> Iterator[AzureServer]:
    """One for all tests here; the tests are skipped where there can be none."""
    try:
        with azure_server() as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def container(server: AzureServer) -> str:
    """A new one, with files."""
    from azure.storage.blob import BlobServiceClient

    name = f"c{uuid.uuid4().hex}"
    found = BlobServiceClient.from_connection_string(server.connection_string).create_container(name)
    for path, data in (("set/big", content(LARGE)), ("set/x/empty", b""), ("other", b"no")):
        found.upload_blob(path, data)
    return name


def test_folders_and_files(server: AzureServer, container: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SMALLEST", 1 << 19)
    values, meter = {"connection_string": server.connection_string}, Count()
    found = desk.get("azure-blob", values, {"container": container, "path": "set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/empty": b""}
    assert (found.size, meter.bytes) == (LARGE, LARGE)
    desk.get("azure-blob", values, {"container": container, "paths": "set/big,other"}, job=2)
    assert desk.read(2) == {"set/big": content(LARGE), "other": b"no"}
    desk.get("azure-blob", values | {"container": container}, {}, job=3)
    assert len(desk.read(3)) == 3


def test_what_is_wrong_is_said(server: AzureServer, container: str, desk: Desk) -> None:
    values = {"connection_string": server.connection_string}
    for location, words in (({"container": container, "path": "no/such"}, "there is no no/such"),
                            ({"container": "no-such"}, "there is no no-such"), ({"path": "a"}, "needs a 'container'")):
        with pytest.raises(DataError, match=words) as problem:
            desk.get("azure-blob", values, location)
        assert not isinstance(problem.value, DataUnavailable)
    with pytest.raises(DataError, match="needs 'account_name' or 'connection_string'"):
        desk.get("azure-blob", {}, {"container": container})


def test_a_program_can_read_the_same_by_itself(server: AzureServer, container: str) -> None:
    import fsspec

    family = find("azure-blob").open({"connection_string": server.connection_string})
    family.test()
    [entry] = family.entries({"container": container, "path": "other"})  # type: ignore[attr-defined]
    with fsspec.open(family.url(entry), **family.storage()[1]) as file:  # type: ignore[attr-defined]
        assert file.read() == b"no"
