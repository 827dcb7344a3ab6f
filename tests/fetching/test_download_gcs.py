"""Downloads from a server of the Google storage protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from fetching_desk import Count, Desk, content
from file_servers import GoogleServer, google_server
from server_process import NotThere

from local_backend.data import transfer
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.registry import find

pytestmark = pytest.mark.integration

LARGE = 2**20 + 7


@pytest.fixture(scope="module")
def server() -> Iterator[GoogleServer]:
    """One server for all tests of this module. Tests are skipped where none can run."""
    try:
        with google_server() as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def bucket(server: GoogleServer) -> str:
    """A new bucket with files."""
    name = f"b{uuid.uuid4().hex}"
    server.put(name, set__big=content(LARGE), set__x__one=b"1", other=b"no", **{"set__ä %2F?.txt": b"odd"})
    return name


@pytest.fixture
def values(server: GoogleServer) -> dict[str, str]:
    """The values of a connection to the server."""
    return {"endpoint_url": server.url}


def test_folders_and_files_are_downloaded(
    values: dict[str, str], bucket: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    meter = Count()
    found = desk.get("gcs", values, {"bucket": bucket, "path": "set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/one": b"1", "ä %2F?.txt": b"odd"}
    assert (found.size, meter.bytes) == (LARGE + 4, LARGE + 4)
    desk.get("gcs", values, {"bucket": bucket, "paths": "set/big,other"}, job=2)
    assert desk.read(2) == {"set/big": content(LARGE), "other": b"no"}
    desk.get("gcs", values | {"bucket": bucket}, {}, job=3)
    assert len(desk.read(3)) == 4


def test_a_wrong_location_is_rejected_with_the_reason(values: dict[str, str], bucket: str, desk: Desk) -> None:
    for location, words in (({"bucket": bucket, "path": "no/such"}, "no/such does not exist"),
                            ({"bucket": "no-such"}, "no-such does not exist"), ({"path": "a"}, "needs a 'bucket'")):
        with pytest.raises(DataError, match=words) as problem:
            desk.get("gcs", values, location)
        assert not isinstance(problem.value, DataUnavailable)


@pytest.mark.parametrize(("credentials", "words"), [
    ("k3y", "not the JSON text of a service account's key"), ('["k3y"]', "not the JSON text"),
    (json.dumps({"type": "service_account", "private_key": "k3y"}), "not the key .* token_uri"),
    (json.dumps({"type": "service_account", "client_email": "a@b.example", "token_uri": "http://127.0.0.1:1",
                 "private_key": "k3y"}), "not the key of a service account"),
])
def test_invalid_credentials_are_rejected_without_showing_them(
    values: dict[str, str], bucket: str, credentials: str, words: str
) -> None:
    with pytest.raises(DataError, match=words) as problem:
        find("gcs").open(values | {"bucket": bucket, "credentials": credentials}, loopback=True).test()
    assert not isinstance(problem.value, DataUnavailable) and "k3y" not in str(problem.value)


def test_a_program_can_read_the_same_object_with_gcsfs(values: dict[str, str], bucket: str) -> None:
    from gcsfs.core import GCSFileSystem

    family = find("gcs").open(values, loopback=True)
    family.test()
    [entry] = family.files({"bucket": bucket, "path": "other"})  # type: ignore[attr-defined]
    protocol, options = family.storage()  # type: ignore[attr-defined]
    address = family.url(entry)  # type: ignore[attr-defined]
    assert protocol == "gs" and address == f"gs://{bucket}/other"
    # Not `fsspec.open`: its file system asks this server for a minute about features it does not have.
    assert GCSFileSystem(**options).cat_file(address) == b"no"


def test_paths_with_dots_and_double_slashes_are_normalized(values: dict[str, str], bucket: str, desk: Desk) -> None:
    for job, path in enumerate(("./set", ".//set//", "set/.")):
        desk.get("gcs", values, {"bucket": bucket, "paths": path}, job=job)
        assert desk.read(job)["big"] == content(LARGE), path
    path = "./set//big,./other"
    desk.get("gcs", values, {"bucket": bucket, "paths": path}, job=9)
    assert desk.read(9) == {"set/big": content(LARGE), "other": b"no"}
