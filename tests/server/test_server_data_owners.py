"""Access rights to data, and the disk that receives fetched data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from data_source_calls import START, job, look, submit
from live_server import Live

from local_backend.services import data
from local_backend.sources.volumes import allow


def test_only_users_of_a_volume_may_use_it(start: Callable[..., Live], tmp_path: Path) -> None:
    live = start(embedded=False, volume_root=tmp_path / "mnts")
    ada, bob, boss = live.add_user("ada"), live.add_user("bob"), live.add_user("boss", "admin")
    hidden = live.settings.data_fs / "below" / "hidden"
    for folder in (hidden / "x", tmp_path / "mnts" / "open"):
        folder.mkdir(parents=True)
    for file in (hidden / "x" / "theirs.csv", hidden.parent / "ours.csv"):
        file.write_text("a,b\n")
    (tmp_path / "mnts" / "closed").symlink_to(hidden)
    allow(live.settings, "closed", ["ada"])

    def asked(token: str, source: dict[str, Any]) -> tuple[str, str]:
        """Return the answers of a submission and of a preview."""
        body = json.dumps({"dataSource": [source]})
        answer = live.submit(START, {"main.py": b""}, body, token)
        seen = live.call("POST", "/data/preview", body.encode(), {"Content-Type": "application/json"}, token=token)
        if answer.status != 200:
            assert (answer.error, seen.error) == ((400, "submission.data_source"), (400, "data.invalid"))
        return (answer.json()["id"] if answer.status == 200 else answer.text,
                seen.json()[0]["path"] if seen.status == 200 else seen.text)

    volume = {"type": "fs", "location": {"volume": "closed", "paths": "x"}}
    connected = {"type": "connection", "connection": {"type": "nfs", "volume": "closed"}, "location": {"path": "x"}}
    around = {"type": "fs", "location": {"path": "below/hidden/x"}}
    for token in (ada, boss):
        for source in (volume, connected):
            accepted, seen = asked(token, source)
            place = str(tmp_path / "mnts" / "closed" / "x")
            assert seen == live.row(accepted).workload.data.data_dir == place, "the path must be below volume_root"
        assert asked(token, around)[1] == str(hidden / "x")
    target = {"type": "connection", "connection": {"type": "s3"}, "location": {"bucket": "b"},
              "target": {"volume": "closed"}}
    for source in (volume, connected, target):
        closed, absent = asked(bob, source), asked(bob, json.loads(json.dumps(source).replace("closed", "no")))
        assert "'closed'" in closed[0] and closed[0] == closed[1]
        assert closed[0].replace("closed", "no") == absent[0], "closed and absent must have the same message"
    assert "storage volume" in asked(bob, around)[0]
    whole = look(live, {"type": "fs"}, token=bob).json()[0]
    assert (whole["files"], whole["unreadableNames"]) == (
        1, [{"path": "below/hidden",
             "message": "on a storage volume, or in a folder of another user, that you may not use"}])
    assert asked(bob, {"type": "fs", "location": {"volume": "open"}})[1] == str(tmp_path / "mnts" / "open")
    meta = live.submit(f"{START} --cs-datastore-meta type=fs,data_path=below/hidden", {"main.py": b""}, token=bob)
    assert meta.error == (400, "submission.data_source") and "storage volume" in meta.text
    live.settings.paths.volume_users.write_text("{")
    damaged = live.submit(START, {"main.py": b""}, token=bob)
    assert damaged.error == (500, "volume.unreadable") and "volumes.json" in damaged.text
    assert live.submit(START, {"main.py": b""}, token=boss).status == 200


def test_data_fetched_for_other_users_cannot_be_named(start: Callable[..., Live], tmp_path: Path) -> None:
    for embedded in (True, False):
        live = start(embedded=embedded, shared_cache_dir=tmp_path / "common", volume_root=tmp_path / "mnts")
        data, home = live.settings.data_fs, live.settings.home
        (data / "mine").mkdir(parents=True)
        (data / "mine" / "a.txt").write_text("1")
        (tmp_path / "mnts").mkdir(exist_ok=True)
        (tmp_path / "mnts" / f"all_{embedded}").symlink_to(data)
        places = [data / ".lake.0.dlicmd-cache" / "x", home / "cache" / "x", tmp_path / "common" / "x",
                  home / "jobs" / "local-9" / "data"]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
            (place / "secret.txt").write_text("of somebody else")
            (data / "link").symlink_to(place)
            named = [str(place), "link"] + ([place.relative_to(data)] if place.is_relative_to(data) else [])
            sources = [{"type": "fs", "location": {"path": str(path)}} for path in named]
            volume = {"volume": f"all_{embedded}"}
            sources += [{"type": "fs", "location": volume | {"path": str(path)}} for path in named]
            for source in sources:
                looked = live.call("POST", "/data/preview", json.dumps({"dataSource": [source]}).encode(),
                                   {"Content-Type": "application/json"})
                assert submit(live, source).error == (400, "submission.data_source")
                assert looked.error == (400, "data.invalid")
                assert any(one in looked.text for one in ("reserved", "outside", "not below")), looked.text
            meta = live.submit(f"{START} --cs-datastore-meta type=fs,data_path={place}", {"main.py": b""})
            assert meta.error == (400, "submission.data_source"), meta.text
            (data / "link").unlink()
        for location in ({}, {"volume": f"all_{embedded}"}):
            [seen] = live.call("POST", "/data/preview",
                               json.dumps({"dataSource": [{"type": "fs", "location": location}]}).encode(),
                               {"Content-Type": "application/json"}).json()
            assert (seen["files"], seen["sample"]) == (1, "mine/a.txt"), "fetched data must not be counted or shown"


def test_a_target_without_a_place_for_a_cache_is_refused(live: Live) -> None:
    live.settings.data_fs.rmdir()
    source = {"type": "s3", "connection": {}, "location": {"bucket": "b", "path": "x"}, "target": "shared"}
    refused = submit(live, source)
    assert refused.error == (400, "submission.data_source") and str(live.settings.data_fs) in refused.text
    assert submit(live, {**source, "access": "stream"}).status == 200, "a stream stores nothing"


@pytest.mark.parametrize(("target", "disk"), [
    ("local", "scratch"), ("shared", "common"), ({"volume": "pvc"}, "nfs"),
])
def test_a_preview_checks_the_free_space_of_the_target_disk(
    start: Callable[..., Live], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, disk: str
) -> None:
    for name in ("scratch", "common", "nfs/pvc", "mnts"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mnts" / "pvc").symlink_to(tmp_path / "nfs" / "pvc")
    live = start(cache_dir=tmp_path / "scratch" / "cache", shared_cache_dir=tmp_path / "common" / "cache",
                 volume_root=tmp_path / "mnts")
    live.settings.data_fs.mkdir(exist_ok=True)
    source = {"type": "connection", "connection": {"type": "s3"}, "location": {"bucket": "b"}, "target": target}
    monkeypatch.setattr(data.ProbeRequest, "run", lambda *_: {"ok": True, "files": 1, "bytes": 2 * 10**9})

    def seen(full: set[str]) -> dict[str, Any]:
        """Return the preview while the disks in `full` have little free space and the others much."""
        monkeypatch.setattr(data.shutil, "disk_usage", lambda path: SimpleNamespace(
            free=10**9 if any(Path(path).is_relative_to(tmp_path / name) for name in full) else 10**12))
        [found] = look(live, source).json()
        return found

    assert seen({"home", "scratch", "common", "nfs"} - {disk})["ok"], "other disks must not matter"
    found = seen({disk})
    free = f"the free space on the disk of the cache {tmp_path / disk}"
    assert not found["ok"] and found["message"].startswith(f"the data has 2.0 GB, but {free}")
    made = [path.name for path in (tmp_path / disk).iterdir() if path.name != "pvc"]
    assert not made, "a preview must leave nothing behind"


def test_only_the_user_of_the_machine_may_name_absolute_paths(start: Callable[..., Live], tmp_path: Path) -> None:
    (tmp_path / "abs").mkdir()
    for embedded in (True, False):
        live = start(embedded=embedded)
        inside = live.settings.data_fs / "mnist"
        inside.mkdir(parents=True)
        (live.settings.data_fs / "out").symlink_to(tmp_path / "abs")

        def data_dir(path: str, live: Live = live) -> tuple[str, str]:
            """Return DATA_DIR, or the error, with --data-source and with --cs-datastore-meta."""
            both = (submit(live, {"type": "fs", "location": {"path": path}}),
                    live.submit(f"{START} --cs-datastore-meta type=fs,data_path={path}", {"main.py": b""}))
            assert all(one.status == 200 or one.error == (400, "submission.data_source") for one in both)
            found = [job(live, one).data.data_dir if one.status == 200 else one.text for one in both]
            return found[0].replace("data source 1: ", ""), found[1]

        for path in (str(inside), "/mnist", "mnist"):
            assert data_dir(path) == (str(inside), str(inside))
        for found in data_dir(str(tmp_path / "abs")):
            assert found == str(tmp_path / "abs") if embedded else "not below DLI_DATA_FS" in found
        for found in (*data_dir("out"), *data_dir("../../abs"), *data_dir("mnist/../../../abs")):
            assert "outside DLI_DATA_FS" in found
        for found in data_dir("/etc/none"):
            assert ("/etc/none" if embedded else "not below DLI_DATA_FS") in found
        for found in data_dir("/etc"):
            assert found == "/etc" if embedded else "not below DLI_DATA_FS" in found


def test_a_preview_without_a_data_directory_says_so(live: Live) -> None:
    live.settings.data_fs.rmdir()
    [seen] = look(live, {"type": "fs"}).json()
    assert not seen["ok"] and "DLI_DATA_FS" in seen["message"]
