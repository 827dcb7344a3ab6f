"""Files of a server that speaks Google's protocol."""

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
    """One for all tests here; the tests are skipped where there can be none."""
    try:
        with google_server() as found:
            yield found
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def bucket(server: GoogleServer) -> str:
    """A new one, with files."""
    name = f"b{uuid.uuid4().hex}"
    server.put(name, set__big=content(LARGE), set__x__one=b"1", other=b"no", **{"set__ä %2F?.txt": b"odd"})
    return name


@pytest.fixture
def values(server: GoogleServer) -> dict[str, str]:
    """Values of a connection to it."""
    return {"endpoint_url": server.url}


def test_folders_and_files(values: dict[str, str], bucket: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    meter = Count()
    found = desk.get("gcs", values, {"bucket": bucket, "path": "set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/one": b"1", "ä %2F?.txt": b"odd"}
    assert (found.size, meter.bytes) == (LARGE + 4, LARGE + 4)
    desk.get("gcs", values, {"bucket": bucket, "paths": "set/big,other"}, job=2)
    assert desk.read(2) == {"set/big": content(LARGE), "other": b"no"}
    desk.get("gcs", values | {"bucket": bucket}, {}, job=3)
    assert len(desk.read(3)) == 4


def test_what_is_wrong_is_said(values: dict[str, str], bucket: str, desk: Desk) -> None:
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
def test_keys_that_are_none(values: dict[str, str], bucket: str, credentials: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as problem:
        find("gcs").open(values | {"bucket": bucket, "credentials": credentials}, loopback=True).test()
    assert not isinstance(problem.value, DataUnavailable) and "k3y" not in str(problem.value)


def test_a_program_can_read_the_same_by_itself(values: dict[str, str], bucket: str) -> None:
    from gcsfs.core import GCSFileSystem

    family = find("gcs").open(values, loopback=True)
    family.test()
    [entry] = family.files({"bucket": bucket, "path": "other"})  # type: ignore[attr-defined]
    protocol, options = family.storage()  # type: ignore[attr-defined]
    address = family.url(entry)  # type: ignore[attr-defined]
    assert protocol == "gs" and address == f"gs://{bucket}/other"
    # Not what fsspec has for the protocol: that asks this server for a minute what it does not know.
    assert GCSFileSystem(**options).cat_file(address) == b"no"


def test_paths_as_shells_write_them(values: dict[str, str], bucket: str, desk: Desk) -> None:
    for job, path in enumerate(("./set", ".//set//", "set/.")):
        desk.get("gcs", values, {"bucket": bucket, "paths": path}, job=job)
        assert desk.read(job)["big"] == content(LARGE), path
    path = "./set//big,./other"
    desk.get("gcs", values, {"bucket": bucket, "paths": path}, job=9)
    assert desk.read(9) == {"set/big": content(LARGE), "other": b"no"}
