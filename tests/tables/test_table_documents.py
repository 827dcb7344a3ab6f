"""Export of document collections to Parquet: MongoDB and Cloudant.

MongoDB is a stand-in that speaks its protocol. Cloudant is a real server of the CouchDB protocol, where installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import requests
from server_process import free_port
from support import PATIENCE, eventually
from tabling import exported, types

from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import Extent
from local_backend.data.kinds.documents import Documents
from local_backend.data.registry import find

pytest.importorskip("bson", reason="pymongo is not installed (extra mongodb)")
import bson
from mongo_server import MongoServer, serving

pytestmark = pytest.mark.integration


def test_columns_are_inferred_from_a_sample() -> None:
    documents = Documents([
        {"_id": "a", "n": 1, "x": 1, "mixed": 1, "deep": {"a": [1]}, "when": datetime(2024, 1, 1, tzinfo=timezone.utc)},
        {"_id": "b", "n": None, "x": 1.5, "mixed": "two", "deep": None, "flag": True, "raw": b"\0", "never": None},
    ])
    assert {column.name: str(column.type) for column in documents.schema} == {
        "_id": "string", "n": "int64", "x": "double", "mixed": "string", "deep": "string",
        "when": "timestamp[us, tz=UTC]", "flag": "bool", "raw": "binary", "never": "string", "_rest": "string"}
    assert documents.row({"_id": "c", "mixed": "two", "deep": {"a": [1]}}) == [
        "c", None, None, '"two"', '{"a": [1]}', None, None, None, None, None]


def test_values_that_do_not_fit_the_sample_go_to_the_rest_column() -> None:
    documents = Documents([{"n": 1, "s": "x"}])
    row = documents.row({"n": "many", "s": 7, "new": {"raw": b"\xff"}, "_rest": "own"})
    assert row[:2] == [None, None]
    assert json.loads(row[2]) == {"n": "many", "s": 7, "new": {"raw": "ff"}, "_rest": "own"}
    assert documents.row({"n": 2**70})[0] is None and Documents([]).row({"a": 1}) == ['{"a": 1}']


@pytest.fixture(scope="module")
def mongodb() -> Iterator[MongoServer]:
    with serving() as server:
        server.collections = {
            "many": [{"_id": number, "half": number / 2, "text": f"digit {number}"} for number in range(3000)],
            "empty": [],
            "odd": [{"_id": bson.ObjectId("65a0c0ffee65a0c0ffee65a0"), "price": bson.Decimal128("1.10"),
                     "at": datetime(2024, 1, 2, tzinfo=timezone.utc), "raw": b"\0\xff", "tags": ["a", {"b": 1}],
                     "nothing": None, "long": bson.Int64(2**40), "code": bson.regex.Regex("x")}],
        }
        yield server


@pytest.fixture
def collection(mongodb: MongoServer) -> Any:
    mongodb.cut = mongodb.slow = False
    mongodb.filters.clear()
    values = {"host": "127.0.0.1", "port": str(mongodb.server_address[1]), "database": "test"}
    return find("Databases for MongoDB").open(values, loopback=True)


def test_a_collection_is_exported(collection: Any, mongodb: MongoServer, tmp_path: Path) -> None:
    collection.test()
    table = exported(collection, {"collection": "many", "query": '{"_id": {"$gte": 0}}'}, tmp_path)
    assert types(table) == {"_id": "int64", "half": "double", "text": "string", "_rest": "string"}
    assert table["_id"].to_pylist() == list(range(3000)) and table["_rest"].null_count == 3000
    assert mongodb.filters == [{"_id": {"$gte": 0}}] * 2
    assert exported(collection, {"table_name": "empty"}, tmp_path).num_rows == 0


def test_documents_are_counted_or_estimated(collection: Any, mongodb: MongoServer) -> None:
    assert collection.extent({"collection": "MANY"}, 5) == Extent(3000, size=300_000)
    wanted = {"collection": "many", "query": '{"_id": {"$gte": 0}}'}
    assert collection.extent(wanted, 5) == Extent(3000) and mongodb.filters == [{}, {"_id": {"$gte": 0}}]
    mongodb.slow = True
    assert collection.extent({"collection": "many"}, 5) == Extent(3000, estimated=True, size=300_000)
    assert collection.extent(wanted, 5) == Extent()


def test_the_case_of_a_collection_name_is_ignored_if_it_is_unique(collection: Any, mongodb: MongoServer) -> None:
    mongodb.collections |= {"Twin": [], "twin": []}
    collection.table({"collection": "Many"}), collection.table({"collection": "twin"})
    with pytest.raises(DataError, match="'Twin', 'twin'"):
        collection.table({"collection": "TWIN"})


def test_mongodb_types_are_converted(collection: Any, tmp_path: Path) -> None:
    (row,) = exported(collection, {"collection": "odd"}, tmp_path).to_pylist()
    assert row.pop("code") is not None
    assert row == {
        "_id": "65a0c0ffee65a0c0ffee65a0", "price": "1.10", "at": datetime(2024, 1, 2, tzinfo=timezone.utc),
        "raw": b"\0\xff", "tags": '["a", {"b": 1}]', "nothing": None, "long": 2**40, "_rest": None}


@pytest.mark.parametrize(("location", "words"), [
    ({}, "needs 'collection'"), ({"collection": 7}, "needs 'collection'"),
    ({"collection": "none"}, "no collection 'none'"), ({"collection": "man"}, "did you mean 'many'"),
    ({"collection": "many", "query": "SELECT 1"}, "not a filter"),
    ({"collection": "many", "query": [1]}, "not a filter"),
    ({"collection": "many", "query": {"$where": "sleep(1)"}}, r"\$where, which runs a program"),
    ({"collection": "many", "query": '{"$or": [{"a": {"$expr": {"$function": {}}}}]}'}, r"\$function, which runs"),
])
def test_an_invalid_location_is_rejected_with_the_reason(collection: Any, location: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as problem:
        collection.table(location)
    assert not isinstance(problem.value, DataUnavailable)


def test_a_broken_mongodb_connection_leaves_no_files(collection: Any, mongodb: MongoServer, tmp_path: Path) -> None:
    mongodb.cut = True
    with pytest.raises(DataUnavailable):
        exported(collection, {"collection": "many"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_multi_user_server_does_not_connect_to_local_addresses() -> None:
    for kind, values in (("mongodb", {"host": "localhost"}), ("cloudant", {"url": "https://127.0.0.1"}),
                         ("cloudant", {"url": "https://169.254.169.254"})):
        with pytest.raises(DataError, match="does not connect to the address"):
            find(kind).open({"database": "x"} | values).test()
    with pytest.raises(DataError, match="https"):
        find("cloudant").open({"database": "x", "url": "http://db.example"}).test()


@pytest.fixture(scope="module")
def couchdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a CouchDB server with 3 databases."""
    program = shutil.which("pouchdb-server")
    if program is None:
        pytest.skip("pouchdb-server is not on PATH (npm install pouchdb-server)")
    folder = tmp_path_factory.mktemp("couchdb")
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "--in-memory", "--host", "127.0.0.1", "--port", str(port)], cwd=folder,
                                   stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        eventually(lambda: process.poll() is not None or _answers(address), "the server starts")
        assert process.poll() is None, (folder / "log").read_text()
        for name in ("many", "empty", "odd/name"):
            requests.put(f"{address}/{requests.utils.quote(name, safe='')}", timeout=PATIENCE).raise_for_status()
        documents = [{"_id": f"{number:05}", "n": number, "odd": number % 2 == 1} for number in range(1500)]
        design = {"_id": "_design/x", "views": {}}
        requests.post(f"{address}/many/_bulk_docs", json={"docs": [*documents, design]}, timeout=PATIENCE)
        requests.put(f"{address}/_config/admins/ada", json="5 apples", timeout=PATIENCE).raise_for_status()
        yield address
    finally:
        process.kill()
        process.wait(PATIENCE)


def _answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=5).ok
    except requests.RequestException:
        return False


def test_a_cloudant_database_is_exported(couchdb: str, tmp_path: Path) -> None:
    family: Any = find("Cloudant").open({"url": couchdb, "database": "many"}, loopback=True)
    family.test()
    table = exported(family, {}, tmp_path)
    assert types(table) == {"_id": "string", "_rev": "string", "n": "int64", "odd": "bool", "_rest": "string"}
    assert table["n"].to_pylist() == list(range(1500)) and table["_rest"].null_count == 1500
    assert family.table({}).version not in ("", "0")
    assert family.extent({}, 60).rows == 1500 and family.extent({"query": {"odd": True}}, 60) == Extent(750)
    selected = exported(family, {"query": {"odd": True}}, tmp_path)
    assert sorted(selected["n"].to_pylist()) == list(range(1, 1500, 2))
    for name in ("empty", "odd/name"):
        assert exported(find("cloudant").open({"url": couchdb, "database": name}, True), {}, tmp_path).num_rows == 0


def test_cloudant_rejects_a_wrong_password(couchdb: str) -> None:
    values = {"url": couchdb, "database": "many", "username": "ada", "password": "5 apples"}
    find("cloudant").open(values, loopback=True).test()
    with pytest.raises(DataError, match="401") as problem:
        find("cloudant").open(values | {"password": "6 pears"}, loopback=True).test()
    assert not isinstance(problem.value, DataUnavailable) and "pears" not in str(problem.value)


def test_a_missing_cloudant_database_or_server_is_reported(couchdb: str) -> None:
    with pytest.raises(DataError, match="answers 404") as problem:
        find("cloudant").open({"url": couchdb, "database": "none"}, True).test()
    assert not isinstance(problem.value, DataUnavailable)
    with pytest.raises(DataUnavailable, match="refused"):
        find("cloudant").open({"url": "http://127.0.0.1:1", "database": "none"}, True).test()
    with pytest.raises(DataError, match="not a selector"):
        find("cloudant").open({"url": couchdb, "database": "many"}, True).table({"query": "SELECT 1"})  # type: ignore[attr-defined]
