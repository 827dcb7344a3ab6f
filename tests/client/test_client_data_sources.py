"""--data-source: faults are reported before the client packs or sends anything."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply
from jsonschema import Draft202012Validator

from dlicmd.cli.commands.preview import _sources, _text
from dlicmd.cli.commands.submissions import data_sources
from dlicmd.contract.argv import parse_argv
from dlicmd.contract.data_sources import SCHEMA, beyond_schema, explained
from dlicmd.sdk.data import one_or_more
from dlicmd.sdk.errors import UsageProblem

CONNECTED = {"type": "connection", "connection": {"name": "lake"}, "location": {"bucket": "b", "path": "x"}}
SUBMIT = ["--exec-start", "PyTorch", "--user-cmd"]


def complaint(*sources: Any) -> str | None:
    """Return the error message for these data sources, or None."""
    try:
        data_sources(parse_argv(["--exec-start", "PyTorch", "--data-source", json.dumps(list(sources))]))
    except UsageProblem as problem:
        return str(problem)
    return None


def test_the_client_leaves_the_check_to_the_server_without_jsonschema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    assert complaint({"type": "fs", "access": "download"}, {"type": "s3"}) is None
    assert (complaint(CONNECTED, 3) or "").startswith("--data-source: data source 2 ")
    assert "'location'" in (complaint({"type": "fs", "locaton": {}}) or "")


def test_the_schema_is_a_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("source", [
    {"type": "fs"}, {"type": "fs", "location": {"paths": ["a", "b"]}}, {"type": "fs", "location": {"path": "a"}},
    {"type": "fs", "connection": {}, "location": {"volume": "cpd::demo-project-pvc"}, "access": "mount"}, CONNECTED,
    {"type": "connection", "asset": {"asset_id": "1", "project_id": "2"},
     "location": {"paths": "a.gz, dir/b.json", "bucket": "b"}},
    {"type": "connection_asset", "connection": {"id": "1", "href": "/v2/connections/1"}, "id": "train", "name": "t",
     "location": {"schema_name": "S", "table_name": "T"}, "schema": {"id": "1", "fields": [{"name": "a"}]}},
    {"type": "s3", "connection": {"endpoint_url": "https://x", "access_key_id": "a", "secret_access_key": "b"},
     "location": {"bucket": "b", "path": "p"}},
    {"type": "data_asset", "connection": {}, "location": {"href": "/v2/assets/1?project_id=2"}},
    {"type": "container", "location": {"path": "p"}},
    {**CONNECTED, "access": "mount"},
    {"type": "connection", "connection": {"name": "docs"},
     "location": {"collection": "things", "query": {"a": {"$gt": 1}, "password": {"$exists": True}}}},
    {"type": "connection", "connection": {"name": "ring"}, "location": {"keyspace": "k", "table_name": "t"}},
    {"type": "fs", "connection": {}, "location": {"path": "a", "id": "1", "schema": {"id": "1"}}},
    {**CONNECTED, "access": "stream", "target": "shared"}, {**CONNECTED, "target": {"volume": "v"}},
])
def test_recorded_and_documented_forms_are_accepted(source: dict[str, Any]) -> None:
    assert complaint(source) is None


@pytest.mark.parametrize("source", [
    {"type": "fs", "Location": {}}, {"type": "fs", "LOCATION": {}}, {"type": "fs", "password": "x"},
    {"type": "fs", "api-Key": "x"}, {"type": "fs", "sas": "x"}, {**CONNECTED, "acces": "stream"},
    {**CONNECTED, "targets": "local"}, {**CONNECTED, "location": {"bucket": "b", "apikey": "x"}},
    {**CONNECTED, "location": {"Paths": "x"}}, {**CONNECTED, "location": {"tableName": "x"}},
    {"type": "fs", "location": {"paths": ["x"] * 10_001}},
])
def test_the_client_and_a_schema_validator_refuse_the_same_sources(source: dict[str, Any]) -> None:
    assert complaint(source) and list(Draft202012Validator(SCHEMA).iter_errors([source]))


@pytest.mark.parametrize("key", [
    "id", "schema", "href", "description", "format", "metadata", "keyspaces", "author", "tags", "project_id", "x", "ID",
    "asset_type", "attachments", "origin_country",
])
def test_the_client_and_the_schema_accept_keys_of_other_products(key: str) -> None:
    source = {"type": "fs", "location": {"paths": "x"}, key: {"a": 1}}
    assert complaint(source) is None and not list(Draft202012Validator(SCHEMA).iter_errors([source]))


def test_the_maximum_length_of_a_query_is_reported() -> None:
    source = {"type": "connection", "connection": {"name": "x"}, "location": {"query": "SELECT 1" + " " * 20_000}}
    assert "20,000" in str(complaint(source)) and "20,008" in str(complaint(source))


@pytest.mark.parametrize(("text", "said"), [
    (r'[{"type": "fs", "x": "\ud800"}]', "the value of 'x'"), (r'[{"type": "fs", "\udfff": 1}]', "the key '?'"),
    ('[{"type": "fs", "x": 1e999}]', "the value of 'x'"), ('[{"type": "fs", "x": NaN}]', "NaN"),
    ("[" * 900 + "]" * 900, "100 levels"), ("[" * 50_000, "100 levels"),
    ('[{"type": "fs", "location": {}, "location": {}}]', "'location'"),
    ('[{"type": "fs", "location": {"paths": "a", "paths": "b"}}]', "'paths'"),
])
def test_json_that_the_server_would_refuse_is_not_sent(text: str, said: str) -> None:
    for read in (lambda: data_sources(parse_argv(["--exec-start", "PyTorch", "--data-source", text])),
                 lambda: one_or_more(text, "--data-preview")):
        with pytest.raises(UsageProblem) as caught:
            read()
        assert said in str(caught.value) and str(caught.value).startswith("--data-"), caught.value


@pytest.mark.parametrize(("source", "expected"), [
    (3, "data source 2 must be a JSON object"),
    ({}, "'type' is missing"),
    ({"type": "connektion"}, "\"connektion\"; did you mean 'connection'?"),
    ({"type": "fs", "locaton": {"paths": "a"}}, "unknown key 'locaton'; did you mean 'location'?"),
    ({"type": "fs", "location": {"pahts": "a"}}, "unknown key 'location.pahts'; did you mean 'location.paths'?"),
    ({"type": "fs", "location": "mnist"}, "'location'"),
    ({"type": "fs", "location": {"paths": [1]}}, "'location.paths.0'"),
    ({"type": "fs", "access": "download"}, "'access' must be mount"),
    ({"type": "fs", "location": {"bucket": "train"}}, "'location.bucket'"),
    ({"type": "fs", "location": {"dir": "train"}}, "'location.dir'"),
    ({"type": "data_asset", "connection": {"name": "x"}}, "'connection'"),
    ({**CONNECTED, "location": {"query": ["x"]}}, "'location.query'"),
    ({"type": "connection", "location": {"path": "x"}}, "'connection'"),
    ({"type": "connection", "connection": {"name": "x"}}, "'location' is missing"),
    ({"type": "s3", "connection": {}, "location": {"path": "x"}}, "'location.bucket' is missing"),
    ({**CONNECTED, "target": "volume"}, "'target' must be local, shared or"),
    ({**CONNECTED, "access": "copy"}, "mount, download, stream"),
])
def test_a_fault_is_reported_with_source_key_and_correction(source: Any, expected: str) -> None:
    said = complaint({"type": "fs"}, source)
    assert said is not None and said.startswith("--data-source: data source 2") and expected in said
    assert "\n" not in said


def test_values_of_connections_are_not_shown() -> None:
    said = complaint({"type": "s3", "connection": {"secret_access_key": ["planted"]}, "location": {"bucket": "b"}})
    assert said is not None and "'connection.secret_access_key'" in said and "planted" not in said


@pytest.mark.parametrize(("more", "key"), [
    ({"password": "planted"}, "password"), ({"secretKey": "planted"}, "secretKey"),
    ({"credentials": {"a": "planted"}}, "credentials"),
    ({"location": {"paths": "x", "pwd": "planted"}}, "location.pwd"),
    ({"location": {"sas": "planted"}, "type": "fs"}, "location.sas"),
])
def test_misplaced_credentials_are_refused_and_not_shown(more: dict[str, Any], key: str) -> None:
    said = complaint({**CONNECTED, **more})
    assert said is not None and f"'{key}'" in said and "planted" not in said


def test_a_single_data_source_is_accepted_without_a_list() -> None:
    assert one_or_more(json.dumps(CONNECTED), "--data-preview") == [CONNECTED]
    with pytest.raises(UsageProblem, match="--data-preview: data source 1 "):
        one_or_more("3", "--data-preview")


def test_a_wrong_type_is_reported_before_anything_is_sent(desk: Desk, local: FakeServer) -> None:
    words = ["--exec-start", "PyTorch", "--model-dir", "absent", "--data-source"]
    done = desk.run(*words, '[{"type": "fs", "path": "a"}]')
    assert "absent" in done.err, "unknown keys that resemble no known key must be accepted"
    done = desk.run(*words, '[{"type": "ffs"}]', "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and "'fs'" in done.err
    assert not local.seen


def test_cs_datastore_meta_has_no_effect_with_data_source(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--cs-datastore-meta", "type=fs,data_path=a",
                    "--data-source", '[{"type": "fs"}]', "--", "true")
    assert done.code == 0 and "--cs-datastore-meta" in done.err


@pytest.mark.parametrize(("more", "said"), [
    ([], "DATA_DIR is the data folder"),
    (["--cs-datastore-meta", "type=fs,data_path=a"], "DATA_DIR comes from --cs-datastore-meta"),
])
def test_an_empty_list_of_data_sources_is_ignored_with_a_message(
    desk: Desk, local: FakeServer, more: list[str], said: str
) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--data-source=[]", *more, "--", "true")
    assert done.code == 0 and "--data-source" in done.err and said in done.err


def test_data_preview_accepts_a_connection_without_a_path() -> None:
    def source(text: str) -> dict[str, Any]:
        [one] = _sources(text)
        return one

    assert source("web:") == {"type": "connection", "connection": {"name": "web"}, "location": {}}
    assert source("web:a/b") == {"type": "connection", "connection": {"name": "web"}, "location": {"path": "a/b"}}
    assert source(":a") == {"type": "fs", "location": {"path": [":a"]}}


def test_data_preview_shows_arrays_with_their_shape() -> None:
    told = _text({"ok": True, "name": "x", "type": "fs", "sample": "x.npz", "format": "numpy archive",
                  "arrays": [{"name": "a", "shape": [60000, 28, 28], "dtype": "|u1"},
                             {"name": "b", "shape": [], "dtype": "<f8"}], "rows": [[1, 2, "…"]]})
    assert "array a: 60000x28x28 of |u1\narray b: one element of <f8" in told and told.endswith("\n  1  2  …")
    one = {"ok": True, "name": "x", "type": "fs", "format": "numpy", "shape": [3], "dtype": "<f4", "rowCount": 3}
    assert "array: 3 of <f4" in _text(one)


def test_data_preview_aligns_the_rows_of_a_csv_file() -> None:
    csv = {"ok": True, "name": "x", "type": "fs", "sample": "x.csv", "format": "csv",
           "rows": [["height", "weight", "height"], ["1", "\x1b[31m2"], [], ["1.55", "44.125", "\t日本"]]}
    assert _text(csv).endswith("x.csv: csv\nheight  weight  height\n1       2\n\n1.55    44.125   日本")
    text = {**csv, "sample": "x.txt", "format": "text", "rows": [["a  b"], ["c"]]}
    assert _text(text).endswith("x.txt: text\n  a  b\n  c"), "text files must stay unaligned"


@pytest.mark.parametrize(("found", "expected"), [
    ({"rowCount": 1, "rowCountEstimated": False, "bytes": 8192}, "\n1 row, 8.0K on the server"),
    ({"rowCount": 1234567, "rowCountEstimated": True, "bytes": None}, "\nabout 1,234,567 rows (the server's estimate)"),
    ({"rowCount": None, "rowCountEstimated": False, "bytes": None}, "\nthe number of rows is unknown"),
    ({"files": 1, "bytes": 2048, "names": [], "rowCount": 3}, "\n3 rows"),
    ({"files": 1, "bytes": 5, "unreadable": 2, "unreadableNames": [{"path": "a", "message": "Permission denied"}]},
     "\nthe user that runs the jobs cannot read 2 files: a (Permission denied), …"),
])
def test_data_preview_shows_sizes_and_unreadable_files(found: dict[str, Any], expected: str) -> None:
    assert _text({"ok": True, "name": "x", "type": "fs", **found}).endswith(expected)


def test_schema_faults_of_any_json_have_one_line_messages() -> None:
    strange = [{"type": []}], [{"type": "fs", "name": {}}], [{"": 1, "type": "fs"}], [{"type": "fs", "target": []}]
    for value in (None, 3, "x", {}, [None], [[]], *strange):
        told = [beyond_schema(value), *(explained(fault) for fault in Draft202012Validator(SCHEMA).iter_errors(value))]
        assert all(text is None or "\n" not in text for text in told)


def test_relative_paths_become_absolute_paths_of_this_machine(tmp_path, monkeypatch) -> None:
    from dlicmd.sdk.data import change_source, local_path

    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()

    def changed(location: dict) -> dict:
        return change_source({"type": "fs", "location": location}, local_path)["location"]

    assert changed({"paths": "./a, far, ./b"}) == {"paths": f"{tmp_path}/a,far,{tmp_path}/b"}
    assert changed({"paths": ["./a", "far"]}) == {"paths": [f"{tmp_path}/a", "far"]}
    assert changed({"file_name": "./a"}) == {"file_name": f"{tmp_path}/a"}
    assert changed({"volume": "v", "paths": "./a"}) == {"volume": "v", "paths": "./a"}


@pytest.mark.parametrize(("words", "path"), [
    (["--data-preview", "near"], "/data/preview"),
    (["--data-preview", '{"type": "fs", "location": {"paths": "far, near"}}'], "/data/preview"),
    ([*SUBMIT, "--cs-datastore-meta", "type=fs,data_path=near", "--", "true"], "/execs/"),
    ([*SUBMIT, "--data-source", '[{"type": "fs", "location": {"path": ["near"]}}]', "--", "true"], "/execs/"),
])
def test_a_server_path_that_exists_locally_is_suggested(
    desk: Desk, local: FakeServer, words: list[str], path: str
) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",data-preview"
    said = "the data path 'near' does not exist on the server (/gpfs/mydatafs/near)"
    local.replies["POST", BASE + path] = Reply(400, f"Error 400: {said}.\n".encode())
    assert desk.run(*words).err.endswith(f"{said}.\n"), "no local file has this name"
    (desk.folder / "near").mkdir()
    (desk.folder / "far").mkdir()
    done = desk.run(*words)
    assert done.code == 2 and said in done.err and "./near?" in done.err, done.err
    local.replies["POST", BASE + path] = Reply(400, b"Error 400: too late.\n")
    assert desk.run(*words).err.endswith("too late.\n"), "the error has another cause"
    local.conf["DLICMD_EXTENSIONS"] = "data-preview"
    local.replies["POST", BASE + path] = Reply(400, f"Error 400: {said}.\n".encode())
    assert desk.run(*words).err.endswith(f"{said}.\n"), "that server does not read local files"
