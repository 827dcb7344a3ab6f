"""Valid locations for each kind of server. Submission and preview refuse an invalid location before a job starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from live_server import Answer, Live

pytest.importorskip("boto3", reason="extra s3")
pytest.importorskip("pymysql", reason="extra mysql")
pytest.importorskip("pymongo", reason="extra mongodb")
pytest.importorskip("sshfs", reason="extra sftp")

START = "--exec-start PyTorch --model-main main.py"
JSON = {"Content-Type": "application/json"}
MYSQL = {"host": "db.example.com", "username": "reader", "database": "sales", "password": "planted"}
WEB = {"url": "https://example.com/sets/"}
SFTP = {"host": "example.com", "username": "reader", "folder": "/sets"}
#: Name → kind and values of the connections on the server.
KEPT: dict[str, tuple[str, dict[str, Any]]] = {
    "my": ("mysql", MYSQL), "docs": ("mongodb", {"host": "db.example.com", "database": "d"}), "web": ("http", WEB),
    "bucketless": ("s3", {}), "lake": ("s3", {"bucket": "train"}), "far": ("sftp", SFTP),
    "known": ("sftp", {**SFTP, "host_key": "ssh-ed25519 AAAA"}), "clouds": ("cloudant", {**WEB, "database": "d"}),
    "hadoop": ("hdfs", {"url": "namenode", "folder": "sets"}), "secretive": ("http", {**WEB, "query": "sig"}),
    "mine": ("nfs", {"volume": "deep-lake", "folder": "train"}),
}


@pytest.fixture(scope="module")
def kept(shared: Live) -> Live:
    """A server with these connections and a volume. A test may leave execs on it."""
    (shared.settings.paths.volumes / "deep_lake" / "train" / "x").mkdir(parents=True)
    (shared.settings.paths.volumes / "deep_lake" / "other").mkdir()
    for name, (kind, values) in KEPT.items():
        answer = post(shared, "/connections", {"name": name, "type": kind, "values": values})
        assert answer.status == 200, answer.text
    return shared


def post(live: Live, path: str, body: dict[str, Any]) -> Answer:
    return live.call("POST", path, json.dumps(body).encode(), JSON)


def source(name: str, location: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "connection", "connection": {"name": name}, "location": location, **more}


def submit(live: Live, *sources: Any) -> Answer:
    return live.submit(START, {"main.py": b""}, json.dumps({"dataSource": list(sources)}))


def refused(live: Live, one: dict[str, Any]) -> str:
    """Check that a submission and a preview are refused with the same text, and return this text."""
    answer, look = submit(live, one), post(live, "/data/preview", {"dataSource": [one]})
    assert (answer.error, look.error) == ((400, "submission.data_source"), (400, "data.invalid")), (answer, look)
    assert answer.text == look.text
    return answer.text


def values(live: Live, answer: Answer) -> dict[str, str]:
    """Return the values of the connection of an exec's only source, as the fetcher gets them."""
    assert answer.status == 200, answer.text
    return dict(live.services.connections.known.of_sources(live.row(answer.json()["id"]))[1])


# --- keys

@pytest.mark.parametrize(("name", "location", "key", "kind", "supported"), [
    ("my", {"table_name": "t", "bucket": "b"}, "bucket", "MySQL", "table_name"),
    ("my", {"paths": "x"}, "paths", "MySQL", "table_name"),
    ("my", {"table_name": "t", "keyspace": "k"}, "keyspace", "MySQL", "table_name"),
    ("lake", {"table_name": "t"}, "table_name", "Amazon S3", "bucket, paths"),
    ("lake", {"path": "x", "share": "s"}, "share", "Amazon S3", "bucket, paths"),
    ("web", {"path": "x", "bucket": "b"}, "bucket", "HTTP", "url, paths, path, file_name"),
    ("far", {"path": "x", "bucket": "b"}, "bucket", "SFTP", "path"),
    ("docs", {"collection": "c", "catalog_name": "c"}, "catalog_name", "MongoDB", "collection"),
    ("clouds", {"table_name": "t"}, "table_name", "Cloudant", "database_name, query"),
    ("mine", {"path": "x", "bucket": "b"}, "bucket", "Storage volume", "paths, path, file_name"),
])
def test_a_location_key_that_the_kind_does_not_support_is_refused(  # noqa: PLR0917
    kept: Live, name: str, location: Any, key: str, kind: str, supported: str
) -> None:
    said = refused(kept, source(name, location))
    assert f"'{key}'" in said and kind in said and supported in said


@pytest.mark.parametrize(("more", "said"), [
    ({"location": {"bucket": "train"}}, "'location.bucket'"),
    ({"location": {"paths": "mnist", "table_name": "x"}}, "'location.table_name'"),
    ({"location": {"folder": "mnist"}}, "'location.folder'"),
    ({"connection": {"name": "lake"}}, "'connection'"),
    ({"asset": {"asset_id": "1"}}, "'asset'"),
])
def test_a_key_without_meaning_for_data_on_the_server_is_refused(live: Live, more: Any, said: str) -> None:
    for kind in ("fs", "data_asset"):
        assert said in refused(live, {"type": kind, **more})
    harmless = {"id": "1", "schema": {"id": "1", "fields": []}, "href": "/v2/assets/1", "paths": ""}
    assert submit(live, {"type": "fs", "connection": {}, "location": harmless}).status == 200


def test_extra_keys_of_other_products_are_accepted_and_not_stored(kept: Live) -> None:
    beside = {"id": "1", "href": "/v2/assets/1", "schema": {"fields": [{"name": "a"}], "token": "planted"}}
    answer = submit(kept, source("lake", {"bucket": "b", "file_name": "x", **beside}, schema={"id": "1"}))
    assert answer.status == 200 and "planted" not in answer.text
    [found] = kept.row(answer.json()["id"]).workload.data.sources
    assert found.location == {"bucket": "b", "file_name": "x"}


# --- which database

@pytest.mark.parametrize(("name", "location", "database"), [
    ("my", {"table_name": "t"}, "sales"), ("my", {"table_name": "t", "database_name": "sales"}, "sales"),
    ("my", {"table_name": "t", "database_name": "other"}, "other"),
    ("my", {"table_name": "t", "schema_name": "other"}, "other"),
    ("my", {"query": "select 1", "catalog_name": "other", "database_name": "other"}, "other"),
    ("docs", {"collection": "c", "database_name": "other"}, "other"),
    ("docs", {"table_name": "c", "schema_name": "other"}, "other"), ("clouds", {"database_name": "other"}, "other"),
])
def test_the_location_names_the_database_to_read(kept: Live, name: str, location: Any, database: str) -> None:
    assert values(kept, submit(kept, source(name, location)))["database"] == database


def test_an_inline_connection_may_take_the_database_from_the_location(live: Live) -> None:
    written = {"type": "mysql", **MYSQL}
    table = {"type": "connection", "connection": written, "location": {"table_name": "t", "database_name": "other"}}
    assert values(live, submit(live, table))["database"] == "other"
    del written["database"]
    assert values(live, submit(live, table)) == {**MYSQL, "database": "other"}
    assert "'database'" in refused(live, {**table, "location": {"table_name": "t"}})


@pytest.mark.parametrize("keys", [("database_name", "catalog_name"), ("database_name", "schema_name")])
def test_two_database_names_are_refused(kept: Live, keys: tuple[str, str]) -> None:
    two = dict(zip(keys, ("a", "b"), strict=True))
    said = refused(kept, source("my", {"table_name": "t", **two}))
    assert all(f"'{key}'" in said for key in keys)


@pytest.mark.parametrize("database", ["d;HOSTNAME=evil.example.com", "host=evil", "a/b", "..", "d?ssl=0", "`", "\n"])
def test_a_database_name_with_driver_options_is_refused(kept: Live, database: str) -> None:
    for name, location in (("my", {"table_name": "t"}), ("clouds", {})):
        assert "'database_name'" in refused(kept, source(name, {**location, "database_name": database}))


# --- errors known before the job starts

@pytest.mark.parametrize(("name", "location", "said"), [
    ("my", {}, "'table_name' or 'query'"),
    ("my", {"table_name": "t", "query": "select 1"}, "'table_name' or 'query', not both"),
    ("my", {"query": "delete from orders"}, "'delete'"),
    ("my", {"query": "select 1; drop table t"}, "second statement"),
    ("my", {"query": "  "}, "'query' is empty"),
    ("my", {"query": {"a": 1}}, "'query' must be a text"), ("my", {"query": "select 1 # x"}, "'#'"),
    ("my", {"query": ""}, "'location.query'"),
    ("docs", {}, "'collection'"), ("docs", {"collection": "c", "query": "SELECT 1"}, "filter"),
    ("docs", {"collection": "c", "query": {"$where": "sleep(1)"}}, "$where"),
    ("docs", {"collection": "c", "table_name": "t"}, "two collections"),
    ("clouds", {"query": "SELECT 1"}, "selector"),
    ("bucketless", {}, "'bucket'"),
    ("bucketless", {"path": "x"}, "'bucket'"),
    ("web", {}, "folder"),
])
def test_an_invalid_location_is_refused_at_submission(kept: Live, name: str, location: Any, said: str) -> None:
    assert said in refused(kept, source(name, location))


@pytest.mark.parametrize(("name", "location", "said"), [
    ("my", {"table_name": "t"}, "'access'"),
    ("docs", {"collection": "c"}, "'access'"),
    ("known", {"path": "x"}, "'host_key'"),
    ("secretive", {"path": "x"}, "'query'"),
])
def test_an_unsupported_stream_is_refused_at_submission(kept: Live, name: str, location: Any, said: str) -> None:
    assert said in refused(kept, source(name, location, access="stream"))
    assert submit(kept, source(name, location)).status == 200
    assert submit(kept, source("far", {"path": "x"}, access="stream")).status == 200


@pytest.mark.parametrize("query", [{"a": {"$gt": 1}}, '{"a": {"$gt": 1}}', {}, {"password": {"$exists": True}}])
def test_a_filter_is_an_object_or_its_text(kept: Live, query: Any) -> None:
    for name, location in (("docs", {"collection": "things"}), ("clouds", {})):
        answer = submit(kept, source(name, {**location, "query": query}))
        assert answer.status == 200, answer.text
        [found] = kept.row(answer.json()["id"]).workload.data.sources
        assert found.location["query"] == query


def test_only_a_preview_accepts_a_table_as_a_path(kept: Live) -> None:
    answer = submit(kept, source("my", {"path": "sales.orders"}))
    assert answer.error == (400, "submission.data_source") and "'path'" in answer.text
    looked = post(kept, "/data/preview", {"dataSource": [source("my", {"path": "sales."})]})
    assert looked.error == (400, "data.invalid") and "'table_name' or 'query'" in looked.text, "the table has no name"


# --- paths below a connection

@pytest.mark.parametrize("name", ["web", "far", "hadoop", "lake"])
@pytest.mark.parametrize("location", [
    {"paths": "../one.csv"}, {"path": ".."}, {"path": "a/../../one.csv"}, {"file_name": ["ok", "/../one.csv"]},
    {"paths": "ok, ../../one.csv"},
])
def test_a_path_outside_the_connection_is_refused(kept: Live, name: str, location: Any) -> None:
    assert "outside" in refused(kept, source(name, location))
    assert submit(kept, source(name, {"path": "a/../one.csv"})).status == 200, "this path stays inside"


def test_a_path_outside_the_folder_of_a_volume_is_refused(kept: Live) -> None:
    train = kept.settings.paths.volumes / "deep_lake" / "train"
    (train / "link").symlink_to("../other")
    for path in ("../other", "..", "x/../../other", "link"):
        assert "volume deep-lake, folder train" in refused(kept, source("mine", {"path": path}))
    answer = submit(kept, source("mine", {"path": "/x"}))
    assert kept.row(answer.json()["id"]).workload.data.data_dir == str(train / "x")
    climbing = {"type": "nfs", "volume": "deep-lake", "folder": "../elsewhere"}
    assert "volume deep-lake" in refused(kept, {"type": "connection", "connection": climbing, "location": {}})


# --- secrets

@pytest.mark.parametrize(("more", "said"), [
    ({"password": "planted"}, "data source 1: 'password'"),
    ({"credentials": {"user": "planted"}}, "'credentials'"),
    ({"location": {"paths": "x", "password": "planted"}}, "'location.password'"),
    ({"location": {"paths": "x", "api_key": "planted"}}, "'location.api_key'"),
    ({"location": {"paths": "x", "connection_string": "planted"}}, "'location.connection_string'"),
    ({"location": {"paths": "x", "pin": "planted"}}, "'pin'"),
])
def test_misplaced_credentials_are_refused_and_never_stored(kept: Live, more: Any, said: str) -> None:
    one = source("web", {"paths": "x"}) | more
    assert said in (text := refused(kept, one)) and "planted" not in text
    line = kept.submit(f"{START} --data-source={json.dumps([one])}", {"main.py": b""})
    assert line.error == (400, "submission.data_source") and "planted" not in line.text


def test_ignored_keys_are_masked_if_they_look_secret(kept: Live) -> None:
    one = source("web", {"paths": "x"}, metadata={"token": "planted", "author": "ada"}, origin="https://u:planted@h/x")
    answer = submit(kept, one)
    assert answer.json()["dataSource"] == [
        {**one, "metadata": {"token": "***", "author": "ada"}, "origin": "https://u:***@h/x"}]
    assert "planted" not in kept.row(answer.json()["id"]).workload.to_json()


# --- paths with the separator of path lists

def test_a_path_with_a_colon_gives_a_warning(live: Live, tmp_path: Path) -> None:
    for folder in ("a:b", "c"):
        (live.settings.data_fs / folder).mkdir(parents=True)
    place = live.settings.data_fs / "a:b"
    answer = submit(live, {"type": "fs", "location": {"paths": "c, a:b"}})
    assert f"data source 1: {place} contains ':'" in answer.json()["warning"]
    meta = live.submit(f"{START} --cs-datastore-meta type=fs,data_path=a:b", {"main.py": b""})
    assert f"{place} contains ':'" in meta.json()["warning"]
    assert "warning" not in submit(live, {"type": "fs", "location": {"paths": "c"}}).json()
