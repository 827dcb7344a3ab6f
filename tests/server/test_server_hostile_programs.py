"""Damage that a program does to its own files affects no other response and no other exec, and leaks no data."""

from __future__ import annotations

import io
import math
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from live_server import Live

from dlicmd.contract import home as home_contract
from dlicmd.contract import states, wire
from local_backend.files import remove_tree

#: Folders in each other: more than Python's limit of recursion, and than the usual limit of open files.
DEEP = 1200


def zipped(live: Live, exec_id: str) -> list[str]:
    answer = live.call("GET", f"/execs/{exec_id}/result")
    assert answer.status == 200, answer.text
    return zipfile.ZipFile(io.BytesIO(answer.body)).namelist()


def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    (folder / "model").mkdir(parents=True)
    for place in (folder, folder / "model"):
        (place / "secret").write_text("s")
    return folder


def test_a_model_folder_that_is_a_link_is_not_followed(live: Live, tmp_path: Path) -> None:
    exec_id = live.submitted()
    model = live.paths(exec_id).model
    model.rmdir()
    model.symlink_to(secrets(tmp_path))
    assert live.call("GET", f"/execs/{exec_id}/result").status == 400


def test_a_result_folder_that_is_a_link_is_not_followed(live: Live, tmp_path: Path) -> None:
    exec_id = live.submitted()
    root = live.paths(exec_id).root
    root.rename(root.with_name("moved"))
    root.symlink_to(secrets(tmp_path))
    assert live.call("GET", f"/execs/{exec_id}/result").status == 400


def test_links_and_special_files_are_left_out_of_a_result(live: Live, tmp_path: Path) -> None:
    exec_id = live.submitted()
    model = live.paths(exec_id).model
    (model / "folder").symlink_to(secrets(tmp_path))
    (model / "file").symlink_to(tmp_path / "elsewhere" / "secret")
    os.mkfifo(model / "fifo")
    (model / "real").write_text("r")
    assert zipped(live, exec_id) == ["model/real"]


@pytest.mark.integration
def test_names_outside_utf8_and_deep_folders_are_packed(live: Live) -> None:
    exec_id = live.submitted()
    model = live.paths(exec_id).model
    for name in (b"\xff", b"\xfe", b"a\nb"):
        (model / os.fsdecode(name)).write_text("x")
    at = os.open(model, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=at))
    os.close(at)
    try:
        names = zipped(live, exec_id)
    finally:
        remove_tree(model)  # The clean-up of pytest cannot remove folders this deep.
    assert {"model/%FF", "model/%FE", "model/a\nb"} < set(names)
    assert "model/" + "d/" * DEEP + "leaf" in names
    assert not model.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file_makes_the_result_an_error(live: Live) -> None:
    exec_id = live.submitted()
    locked = live.paths(exec_id).model / "locked"
    locked.write_text("x")
    locked.chmod(0)
    answer = live.call("GET", f"/execs/{exec_id}/result")
    assert answer.error == (507, "exec.result_failed") and "locked" in answer.text


def test_damaged_progress_does_not_break_lists(live: Live) -> None:
    spoiled = ({wire.LOSS: [3], 7: 8}, [], {wire.LOSS: math.nan, wire.EPOCH: 10**400, wire.STEP: math.inf})
    for values in (*spoiled, {wire.LOSS: 0.5}):
        live.say(live.submitted(), values)
    for exec_id in live.call("GET", "/execs").json():
        live.move(exec_id[wire.ID], states.PENDING, states.RUNNING)
    listed = live.call("GET", "/execs").json()
    assert [one.get(wire.LOSS) for one in listed] == [None, None, None, 0.5]
    assert not {wire.EPOCH, wire.STEP} & set(listed[2])


def test_removing_a_link_to_a_folder_keeps_the_folder(tmp_path: Path) -> None:
    link = tmp_path / "local-1"
    link.symlink_to(secrets(tmp_path))
    remove_tree(link)
    assert not os.path.lexists(link)
    assert (tmp_path / "elsewhere" / "secret").exists()
    shutil.rmtree(tmp_path / "elsewhere")


def test_a_half_written_file_of_a_killed_server_is_removed(tmp_path: Path) -> None:
    from local_backend.serving import server
    from local_backend.settings import Settings

    settings = Settings(home=tmp_path, data_fs=tmp_path / "data", result_fs=tmp_path / "results", user="ada")
    half = tmp_path / f".{home_contract.BACKEND_FILE}.0a1b2c3d.tmp"
    half.write_text("a token")
    with server.locked(settings):
        assert not half.exists()
