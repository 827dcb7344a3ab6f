"""Blobs of Azurite. adlfs reads blob storage and data lakes in the same way, at the same address."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from fetching_desk import Count, Desk, content
from file_servers import AZURE_KEY, AzureServer, azure_server
from server_process import NotThere

from local_backend.data import transfer
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

LARGE = 2**20 + 7


@pytest.fixture(scope="module")
def server() -> Iterator[AzureServer]:
    """One server for all tests of this module. Tests are skipped where none can run."""
    try:
        with azure_server() as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def container(server: AzureServer) -> str:
    """A new container with files."""
    from azure.storage.blob import BlobServiceClient

    name = f"c{uuid.uuid4().hex}"
    found = BlobServiceClient.from_connection_string(server.connection_string).create_container(name)
    for path, data in (("set/big", content(LARGE)), ("set/x/empty", b""), ("other", b"no")):
        found.upload_blob(path, data)
    return name


@pytest.mark.parametrize("kind", ["azure-blob", "azure-data-lake"])
def test_folders_and_files_are_downloaded(
    server: AzureServer, container: str, desk: Desk, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    values, meter = {"connection_string": server.connection_string}, Count()
    found = desk.get(kind, values, {"container": container, "path": "set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/empty": b""}
    assert (found.size, meter.bytes) == (LARGE, LARGE)
    desk.get(kind, values, {"container": container, "paths": "set/big,other"}, job=2)
    assert desk.read(2) == {"set/big": content(LARGE), "other": b"no"}
    desk.get(kind, values | {"container": container}, {}, job=3)
    assert len(desk.read(3)) == 3


def test_folders_of_a_data_lake_are_not_downloaded_as_files(server: AzureServer, container: str, desk: Desk) -> None:
    """A data lake stores a folder as an empty blob with the metadata `hdi_isfolder`."""
    from azure.storage.blob import BlobServiceClient

    found = BlobServiceClient.from_connection_string(server.connection_string).get_container_client(container)
    for folder in ("lake", "lake/ä empty"):
        found.upload_blob(folder, b"", metadata={"hdi_isfolder": "true"})
    found.upload_blob("lake/ä %2F", b"file")
    location = {"file_system": container, "path": "lake"}
    desk.get("azure-data-lake", {"connection_string": server.connection_string}, location)
    assert desk.read() == {"ä %2F": b"file"}


def test_a_wrong_location_or_key_is_rejected_with_the_reason(server: AzureServer, container: str, desk: Desk) -> None:
    values = {"connection_string": server.connection_string}
    for location, words in (({"container": container, "path": "no/such"}, "no/such does not exist"),
                            ({"container": "no-such"}, "no-such does not exist"),
                            ({"path": "a"}, "needs a 'container'")):
        with pytest.raises(DataError, match=words) as problem:
            desk.get("azure-blob", values, location)
        assert not isinstance(problem.value, DataUnavailable)
    wrong = values["connection_string"].replace(AZURE_KEY, "d3Jvbmc=")
    for kind in ("azure-blob", "azure-data-lake"):
        with pytest.raises(DataError, match="denies access") as problem:
            find(kind).open({"connection_string": wrong, "container": container}).test()
        assert not isinstance(problem.value, DataUnavailable) and "d3Jvbmc=" not in str(problem.value)
    with pytest.raises(DataError, match="'account_name' or 'connection_string'"):
        desk.get("azure-blob", {}, {"container": container})


def test_a_program_can_read_the_same_blob_with_fsspec(server: AzureServer, container: str) -> None:
    import fsspec

    family = find("azure-blob").open({"connection_string": server.connection_string})
    family.test()
    [entry] = family.files({"container": container, "path": "other"})  # type: ignore[attr-defined]
    with fsspec.open(family.url(entry), **family.storage()[1]) as file:  # type: ignore[attr-defined]
        assert file.read() == b"no"


def test_paths_with_dots_and_double_slashes_are_normalized(server: AzureServer, container: str, desk: Desk) -> None:
    values = {"connection_string": server.connection_string}
    for job, path in enumerate(("./set", ".//set//", "set/.")):
        desk.get("azure-blob", values, {"container": container, "paths": path}, job=job)
        assert desk.read(job)["big"] == content(LARGE), path
    path = "./set//big,.//other"
    desk.get("azure-blob", values, {"container": container, "paths": path}, job=9)
    assert desk.read(9) == {"set/big": content(LARGE), "other": b"no"}
