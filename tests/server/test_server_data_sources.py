"""Data sources as clients of all generations write them: position in the body, number and meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data_source_calls import FS, START, form, job, look, submit
from live_server import Answer, Live

from local_backend.runtime.data_list import joined

# --- position

@pytest.mark.parametrize("option", [
    "--data-source {}", "--data-source '{}'", "--data-source={}", "--data-source='{}'", '--data-source \\\n  {}',
])
@pytest.mark.parametrize("spaces", [True, False])
def test_data_sources_are_accepted_in_the_command_line(live: Live, lake: Path, option: str, spaces: bool) -> None:
    sources = [FS, {"type": "fs", "location": {"path": ["my dir"]}, "name": "mine"}]
    text = json.dumps(sources, separators=None if spaces else (",", ":"))
    line = f"{START} {option.format(text)} --epochs 1"
    for answer in (live.submit(line, {"main.py": b""}),
                   live.submit("", {"main.py": b""}, json.dumps({"args": line})),
                   form(live, {"args": line.replace("--model-main main.py", "--user-cmd") + " -- true"})):
        found = job(live, answer)
        assert [source.path for source in found.data.sources] == [str(lake / "mnist"), str(lake / "my dir")]
        assert answer.json()["dataSource"] == sources and found.data.data_dir == str(lake / "mnist")
        assert found.program.arguments in (("--epochs", "1"), ()), "the program must not receive the option"


def test_data_sources_of_all_options_and_the_body_are_merged(live: Live, lake: Path) -> None:
    other = [{"type": "fs", "location": {"paths": "other"}}]
    twice = f"{START} --data-source {json.dumps([FS])} --data-source={json.dumps(other)}"
    assert live.submit(twice, {"main.py": b""}).json()["dataSource"] == [FS, *other]
    both = live.submit(twice, {"main.py": b""}, json.dumps({"dataSource": other}))
    assert both.json()["dataSource"] == [*other, FS], "sources of the body must come first"


def test_datastore_meta_is_accepted_in_every_position(live: Live, lake: Path) -> None:
    for spelling in ("--cs-datastore-meta type=fs,data_path=other", "--cs-datastore-meta=type=fs,data_path=other"):
        line = f"{START} {spelling}"
        for args, data in ((line, None), ("", json.dumps({"args": line}))):
            answer = live.submit(args, {"main.py": b""}, data)
            assert job(live, answer).data.data_dir == str(lake / "other")
        beside = live.submit(f"{line} --data-source {json.dumps([FS])}", {"main.py": b""})
        assert job(live, beside).data.data_dir == str(lake / "mnist"), "--data-source must have priority"


def test_a_list_of_data_sources_may_be_a_json_string(live: Live, lake: Path) -> None:
    for text in (json.dumps([FS]), json.dumps(FS)):
        [source] = job(live, live.submit(START, {"main.py": b""}, json.dumps({"dataSource": text}))).data.sources
        assert source.name == "mnist"


def test_secrets_in_the_command_line_are_masked(live: Live, lake: Path) -> None:
    connection = {"endpoint_url": "https://s3.example.com", "access_key_id": "AK", "secret_access_key": "planted"}
    text = json.dumps([{"type": "s3", "connection": connection, "location": {"bucket": "b"}}])
    answer = live.submit(f"{START} --data-source={text} --epochs 1", {"main.py": b""})
    assert job(live, answer).program.arguments == ("--epochs", "1")
    assert "planted" not in answer.text and "credentials" in answer.json()["warning"]
    assert '"secret_access_key": "***"' in answer.json()["args"] and answer.json()["args"].endswith("--epochs 1 ")


@pytest.mark.parametrize(("line", "data", "code", "said"), [
    ("--data-source=[{", None, "submission.data_source", "--data-source"),
    ("--data-source 3", None, "submission.data_source", "--data-source"),
    ("--data-source=" + json.dumps([FS] * 101), None, "submission.data_source", "100"),
    ("", {"dataSource": "[{"}, "submission.data_source", "'dataSource'"),
    ("", {"dataSource": 3}, "submission.data_source", "'dataSource'"),
    ("--data-source " + json.dumps([{"type": "ffs"}]), None, "submission.data_source", "'fs'"),
])
def test_an_invalid_data_source_is_refused_in_any_position(
    live: Live, line: str, data: Any, code: str, said: str
) -> None:
    answer = live.submit(f"{START} {line}", {"main.py": b""}, None if data is None else json.dumps(data))
    assert answer.error == (400, code) and said in answer.text, answer


@pytest.mark.parametrize(("key", "meant"), [
    ("datasource", "dataSource"), ("data_source", "dataSource"), ("dataSources", "dataSource"), ("Args", "args"),
    ("data-source", "dataSource"), ("hardware_spec", "hardwareSpec"), ("hardwareSpecs", "hardwareSpec"),
])
def test_a_misspelled_key_of_the_body_gets_a_suggestion(live: Live, lake: Path, key: str, meant: str) -> None:
    answer = live.submit(START, {"main.py": b""}, json.dumps({key: [FS]}))
    assert answer.error == (400, "submission.data_part")
    assert f"'{key}'" in answer.text and f"'{meant}'" in answer.text
    assert live.nothing_left()


@pytest.mark.parametrize("key", ["hardware", "data_source_type", "dataSourceId", "database", "collection_name",
                                 "container_name", "volume_id", "accessed"])
def test_keys_of_other_products_are_accepted(live: Live, lake: Path, key: str) -> None:
    data = {key: "x", "dataSource": [{**FS, key: "x"}]}
    assert live.submit(START, {"main.py": b""}, json.dumps(data)).status == 200


def test_unknown_keys_of_the_body_are_ignored(live: Live, lake: Path) -> None:
    others = ("name", "tags", "project_id", "space_id", "description", "data", "source", "model_definition")
    assert live.submit(START, {"main.py": b""}, json.dumps(dict.fromkeys(others, "x"))).status == 200


def test_a_value_given_twice_is_refused_if_the_values_differ(live: Live, lake: Path) -> None:
    answer = live.submit(f"{START} --cs-datastore-meta type=fs,data_path=mnist,data_path=other", {"main.py": b""})
    assert answer.error == (400, "submission.data_source") and "--cs-datastore-meta: 'data_path'" in answer.text
    assert live.submit(f"{START} --cs-datastore-meta type=fs,type=fs,data_path=mnist", {"main.py": b""}).status == 200
    for other, status in (("https://b", 400), ("https://a", 200)):
        connection = {"type": "s3", "url": "https://a", "endpoint_url": other}
        answer = submit(live, {"type": "connection", "connection": connection, "location": {"bucket": "b"}})
        assert answer.status == status, answer.text
        if status == 400:
            assert answer.error[1] == "submission.data_source"
            assert "'url'" in answer.text and "'endpoint_url'" in answer.text


# --- number

def test_thousands_of_paths_are_accepted_and_the_program_can_start(live: Live, lake: Path) -> None:
    many = [f"{number:04d}-{'x' * 40}.bin" for number in range(5000)]
    for name in many:
        (lake / name).touch()
    answer = submit(live, {"type": "fs", "location": {"paths": many}})
    assert "DLI_DATA_SOURCES_FILE" in answer.json()["warning"]
    spec = job(live, answer)
    assert [source.path for source in spec.data.sources] == [str(lake / name) for name in many]
    folders = [source.path for source in spec.data.sources]
    assert joined(folders) is None and joined(folders[:400]) == ":".join(folders[:400])


@pytest.mark.parametrize("several", [1, 3])
def test_too_many_paths_are_refused(live: Live, lake: Path, several: int) -> None:
    sources = [{"type": "fs", "location": {"paths": ["mnist"] * (10_002 // several)}}] * several
    answer = submit(live, *sources)
    assert answer.error == (400, "submission.data_source") and "10,002" in answer.text and "10,000" in answer.text


def test_a_preview_of_too_many_paths_is_refused(live: Live, lake: Path) -> None:
    answer = look(live, {"type": "fs", "location": {"paths": ["mnist"] * 11}})
    assert answer.error == (400, "data.preview") and "11" in answer.text and "10" in answer.text


def test_paths_under_two_keys_give_a_warning(live: Live, lake: Path) -> None:
    answer = submit(live, {"type": "fs", "location": {"paths": "mnist", "path": "other"}})
    assert "data source 1: 'path' is ignored" in answer.json()["warning"]
    assert "warning" not in submit(live, {"type": "fs", "location": {"paths": "mnist", "path": ["mnist"]}}).json()


@pytest.mark.parametrize("words", [["--msd-env", "A=" + "x" * 130_000], ["--x", "y" * 130_000], ["z" * 90_000] * 6,
                                   ["--data-source", json.dumps([FS]), "--cs-datastore-meta", "x" * 130_000]])
def test_a_command_line_too_long_for_a_process_is_refused(live: Live, lake: Path, words: list[str]) -> None:
    answer = live.submit("", {"main.py": b""}, json.dumps({"argv": [*START.split(), *words]}))
    assert answer.error == (400, "submission.too_long")


# --- meaning

@pytest.mark.parametrize("location", [{"paths": "", "path": "mnist"}, {"paths": [], "file_name": "mnist"},
                                      {"path": " , ", "file_name": ["mnist"]}, {"paths": "mnist", "path": "absent"}])
def test_the_first_key_that_names_a_path_is_used(live: Live, lake: Path, location: dict[str, Any]) -> None:
    assert job(live, submit(live, {"type": "fs", "location": location})).data.data_dir == str(lake / "mnist")


@pytest.mark.parametrize(("sources", "said"), [
    ([], "DATA_DIR is {data}"),
    ([{"type": "fs", "location": {"paths": ""}}], "'paths' names no path: the job gets all data of {data}"),
    ([FS, {"type": "fs", "location": {"volume": "deep-lake", "path": []}}], "data source 2: 'path'"),
    ([{"type": "connection", "connection": {"type": "s3"}, "location": {"bucket": "b", "paths": ""}}], "'paths'"),
    ([{"type": "connection", "connection": {"type": "s3", "bucket": "b"}, "location": {}}], "location"),
])
def test_a_source_without_a_path_gives_a_warning(live: Live, lake: Path, sources: list[Any], said: str) -> None:
    assert said.format(data=lake) in submit(live, *sources).json()["warning"]
    assert "warning" not in submit(live, FS).json() and "warning" not in submit(live, {"type": "fs"}).json()


@pytest.mark.parametrize(("source", "said"), [
    ({"type": "container", "connection": {}, "location": {"path": "x"}}, "default bucket"),
    ({"type": "container", "location": {"path": "x"}}, "default bucket"),
    ({"type": "connection_asset", "connection": {}, "location": {"bucket": "b"}}, "names no connection"),
    ({"type": "connection_asset", "connection": {"type": "s3", "bucket": "b"}, "location": {"href": "/v2/assets/1"}},
     "'href'"),
    ({"type": "connection_asset", "connection": {"type": "s3"}, "location": {"id": "1"}}, "'id'"),
    ({"type": "data_asset", "location": {"id": "1"}}, "project assets"),
    ({"type": "connection", "connection": {"type": "s3"}, "location": {"bucket": "b"}, "access": "mount"},
     "'access' must be download or stream"),
    ({"type": "connection", "connection": {"type": "cloudant", "url": "https://db.example", "database": "d"},
      "location": {}, "access": "stream"}, "remove 'access'"),
])
def test_unsupported_sources_are_refused_with_a_remedy(live: Live, source: Any, said: str) -> None:
    sources = FS | {"location": {}}, source
    for answer, code in ((submit(live, *sources), "submission.data_source"), (look(live, *sources), "data.invalid")):
        assert answer.error == (400, code) and said in answer.text and "data source 2" in answer.text, answer


@pytest.mark.parametrize(("body", "code", "said"), [
    (None, "body.value", '"dataSource"'), ([FS], "body.value", '"dataSource"'),
    ({"dataSource": FS}, "body.value", '"dataSource"'), ({"dataSource": []}, "data.preview", "1 to 10"),
    ({"dataSource": [FS] * 11}, "data.preview", "11"),
])
def test_an_invalid_preview_is_refused_with_the_reason(
    live: Live, lake: Path, body: Any, code: str, said: str
) -> None:
    answer = live.call("POST", "/data/preview", json.dumps(body).encode(), {"Content-Type": "application/json"})
    assert answer.error == (400, code) and said in answer.text, answer


@pytest.mark.parametrize("location", [
    {"path": "a.csv?sig=planted"}, {"paths": ["ok", "b?x=planted"]}, {"url": "/sets/?key=planted"},
    {"paths": "", "file_name": "a, c?planted"},
])
def test_a_url_query_in_a_path_is_refused(live: Live, location: dict[str, Any]) -> None:
    source = {"type": "connection", "connection": {"type": "http", "url": "https://example.com"}, "location": location}
    written = live.submit(f"{START} --data-source={json.dumps([source])}")
    for answer in (submit(live, source), look(live, source), written):
        assert answer.status == 400 and answer.error[1] in {"submission.data_source", "data.invalid"}
        assert "'query'" in answer.text and "planted" not in answer.text
    s3 = {"type": "s3", "connection": {}, "location": {"bucket": "b", "path": "really?"}}
    assert submit(live, s3).status == 200, "other kinds must treat '?' as a normal character"


@pytest.mark.parametrize("kind", ["storage-volume", "Storage volume", "nfs", "NFS volume", "Network File System"])
@pytest.mark.parametrize("form", ["connection", "connection_asset", "container"])
def test_a_volume_as_an_inline_connection_is_mounted(live: Live, lake: Path, kind: str, form: str) -> None:
    connection = {"type": kind, "volume": "cpd::deep-lake"}
    place = live.settings.paths.volumes / "deep_lake"
    for location, path in (({"path": "train"}, place / "train"), ({"file_name": "/train"}, place / "train"),
                           ({"paths": ""}, place)):
        found = job(live, submit(live, {"type": form, "connection": connection, "location": location}))
        [source] = found.data.sources
        assert (source.type, source.access, source.path, found.data.data_dir) == (form, "mount", str(path), str(path))
    below = {"type": form, "connection": {**connection, "folder": "/train/"}, "location": {}, "access": "mount"}
    assert job(live, submit(live, below)).data.data_dir == str(place / "train")
    for more, said in (
        ({"access": "stream"}, "'access'"), ({"target": "shared"}, "'target'"),
        ({"location": {"path": "../../x"}}, "../../x"), ({"location": {"path": "no"}}, "/no"),
    ):
        answer = submit(live, {**below, **more})
        assert answer.error == (400, "submission.data_source") and said in answer.text, answer


def test_a_volume_as_a_stored_connection_is_mounted(live: Live, lake: Path) -> None:
    def call(path: str, body: dict[str, Any]) -> Answer:
        return live.call("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})

    for name, volume in (("nfs-1", "deep-lake"), ("gone", "absent")):
        assert call("/connections", {"name": name, "type": "nfs", "values": {"volume_name": volume}}).status == 200
    source = {"type": "connection_asset", "connection": {"name": "nfs-1"}, "location": {"file_name": "train"}}
    place = live.settings.paths.volumes / "deep_lake" / "train"
    assert job(live, submit(live, source)).data.data_dir == str(place)
    [seen] = call("/data/preview", {"dataSource": [source]}).json()
    assert (seen["ok"], seen["path"]) == (True, str(place))
    assert call("/connections/nfs-1/test", {}).json() == {"ok": True}
    assert "'absent'" in call("/connections/gone/test", {}).json()["message"]


def test_data_sources_get_distinct_names(live: Live, lake: Path) -> None:
    named = [{**FS, "name": "tr\u00e4in!"}, {"type": "fs", "location": {"paths": "other"}, "name": "tra\u0308in!"}]
    refused = submit(live, *named)
    assert refused.error == (400, "submission.data_source")
    assert "data source 2: data source 1" in refused.text and "'tra\u0308in!'" in refused.text
    (lake / "a" / "mnist").mkdir(parents=True)
    three = {"type": "fs", "location": {"paths": "mnist, a/mnist, other"}}
    found = job(live, submit(live, three, {**FS, "name": "other"}))
    assert [source.name for source in found.data.sources] == ["mnist", "mnist-2", "other-2", "other"]


def test_a_data_source_keeps_its_name(live: Live, lake: Path) -> None:
    written = ["日本", "データ", "a b", "a-b", "a/b", " ", "1.", "नेपाली", "می‌خواهم"]
    found = job(live, submit(live, *({**FS, "name": name} for name in written)))
    assert [source.name for source in found.data.sources] == written


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a\u202eb"])
def test_a_name_with_invisible_characters_is_refused(live: Live, name: str) -> None:
    answer = submit(live, {**FS, "name": name})
    assert answer.error == (400, "submission.data_source") and f"data source 1: its name {name!a}" in answer.text


@pytest.mark.parametrize(("location", "name"), [
    ({"schema_name": "public", "table_name": "orders"}, "orders"), ({"table_name": "Tête à tête/1"}, "Tête à tête/1"),
    ({"catalog_name": "c", "schema_name": "s", "table_name": "a\u202eb"}, "a-b"),
    ({"query": "select a, b from T"}, "query"), ({"collection": "things", "query": "{}"}, "things"),
])
def test_a_table_source_has_the_name_of_its_table(live: Live, location: dict[str, Any], name: str) -> None:
    kind = "mongodb" if "collection" in location else "postgresql"
    values = {"host": "db.example.com", "database": "d", "username": "u", "password": "planted"}
    source = {"type": "connection", "connection": {"type": kind, **values}, "location": location}
    found = job(live, submit(live, source, source))
    assert [one.name for one in found.data.sources] == [name, f"{name}-2"]


@pytest.mark.parametrize(("location", "name"), [
    ({"bucket": "lake", "paths": "/日本/a b.parquet"}, "a b.parquet"), ({"paths": "train/", "bucket": "lake"}, "train"),
    ({"bucket": "lake", "paths": "a, b"}, "lake"), ({"paths": ["a", "b"], "bucket": "lake"}, "lake"),
    ({"bucket": "lake", "path": "/"}, "lake"), ({"bucket": "lake"}, "lake"),
])
def test_a_file_source_has_the_name_of_its_path_or_bucket(live: Live, location: dict[str, Any], name: str) -> None:
    source = {"type": "s3", "connection": {}, "location": location}
    assert [one.name for one in job(live, submit(live, source)).data.sources] == [name]


def test_a_name_contains_no_password(live: Live) -> None:
    web = {"type": "connection", "connection": {"type": "http", "url": "https://example.com"}}
    answer = submit(live, {**web, "location": {"url": "https://example.com/a&sig=planted"}})
    assert "planted" not in job(live, answer).data.sources[0].name
    refused = submit(live, {**web, "location": {"url": "https://ada:planted@example.com"}})
    assert refused.error == (400, "submission.data_source") and "planted" not in refused.text
