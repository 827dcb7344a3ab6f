"""Data on servers of other products: a preview, then a job that gets the data."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import NotThere
from user import User

sys.path.insert(0, str(Path(__file__).parent.parent / "fetching"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tables"))

from file_servers import azure_server, google_server

pytestmark = pytest.mark.integration

#: Prints each text file, and the number of rows of each table.
SHOW = """
import glob, os, pyarrow.parquet
for file in sorted(glob.glob(os.environ["DATA_DIR"] + "/**", recursive=True)):
    if file.endswith(".parquet"):
        print("rows:", pyarrow.parquet.read_metadata(file).num_rows)
    elif file.endswith(".txt"):
        print(os.path.basename(file), open(file).read())
"""


def source(kind: str, location: dict[str, str], **values: str) -> str:
    """Return a data source as a command line contains it."""
    return json.dumps([{"type": "connection", "connection": {"type": kind, **values}, "location": location}])


@contextlib.contextmanager
def google() -> Iterator[str]:
    with google_server() as server:
        server.put("train", **{"set__ä.txt": b"hello"})
        yield source("gcs", {"bucket": "train", "path": "set"}, endpoint_url=server.url)


@contextlib.contextmanager
def data_lake() -> Iterator[str]:
    with azure_server() as server:
        from azure.storage.blob import BlobServiceClient

        container = BlobServiceClient.from_connection_string(server.connection_string).create_container("train")
        container.upload_blob("set/ä.txt", b"hello")
        yield source("azure-data-lake", {"file_system": "train", "path": "set"},
                     connection_string=server.connection_string)


@contextlib.contextmanager
def hdfs() -> Iterator[str]:
    from hdfs_server import hdfs_server

    with hdfs_server() as server:
        server.put("/set/ä.txt", b"hello")
        yield source("hdfs", {"path": "set"}, url=server.url, username="ada")


@contextlib.contextmanager
def cassandra() -> Iterator[str]:
    pytest.importorskip("cassandra", reason="the driver is not installed (extra cassandra)")
    from cassandra import cqltypes
    from cassandra_server import PASSWORD, serving

    with serving() as server:
        server.tables["digits"] = [("id", cqltypes.Int32Type)], [(number,) for number in range(2500)]
        yield source("cassandra", {"table_name": "digits"}, host="127.0.0.1", port=str(server.server_address[1]),
                     database="test", username="ada", password=PASSWORD)


@contextlib.contextmanager
def mongodb() -> Iterator[str]:
    pytest.importorskip("pymongo", reason="the driver is not installed (extra mongodb)")
    from mongo_server import serving

    with serving() as server:
        server.collections["digits"] = [{"_id": number, "id": number} for number in range(2500)]
        yield source("mongodb", {"collection": "Digits"}, host="127.0.0.1", port=str(server.server_address[1]),
                     database="test")


@contextlib.contextmanager
def hive() -> Iterator[str]:
    pytest.importorskip("pyhive", reason="the driver is not installed (extra hive)")
    from hive_server import PASSWORD, serving

    with serving() as server:
        server.ask("CREATE TABLE digits USING parquet AS SELECT id FROM range(2500)")
        yield source("hive", {"table_name": "digits"}, host="127.0.0.1", port=str(server.port), database="default",
                     username="ada", password=PASSWORD)


@pytest.mark.parametrize("serving", [google, data_lake, hdfs, cassandra, mongodb, hive], ids=lambda one: one.__name__)
def test_data_of_each_kind_of_server_is_previewed_and_fetched(
    serving: Callable[[], contextlib.AbstractContextManager[str]], user: User
) -> None:
    with contextlib.ExitStack() as stack:
        try:
            wanted = stack.enter_context(serving())
        except NotThere as problem:
            pytest.skip(str(problem))
        looked = user.run("--data-preview", wanted)
        assert looked.code == 0 and ("ä.txt" in looked.out or "2,500 rows" in looked.out), looked
        done = user.run("--exec-start", "PyTorch", "--user-cmd", "--data-source", wanted, "--wait", "--",
                        sys.executable, "-c", SHOW)
        assert done.code == 0, done
        out = user.run("--exec-trainoutlogs", done.json["execId"]).out
        assert out in ("ä.txt hello\n", "rows: 2500\n")


def test_a_preview_of_a_too_long_table_reports_the_same_error_as_the_job(user: User) -> None:
    user.backend("stop")
    user.environment["DLI_DATA_ROWS"] = "2499"
    said = "the table has more than 2,499 rows, the limit of this server (DLI_DATA_ROWS)"
    try:
        with mongodb() as wanted:
            looked = user.run("--data-preview", wanted, "-o", "json")
            [found] = json.loads(looked.out)
            assert (looked.code, found["ok"]) == (1, False) and said in found["message"], looked
            assert (found["rowCount"], found["rowCountEstimated"], found["bytes"]) == (2500, False, 250_000)
            done = user.run("--exec-start", "PyTorch", "--user-cmd", "--data-source", wanted, "--wait", "--", "true")
            assert done.code == 3 and said in done.err, done
    finally:
        del user.environment["DLI_DATA_ROWS"]
        user.backend("stop")
