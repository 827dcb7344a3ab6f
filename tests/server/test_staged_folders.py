"""The server takes over large folders of its own user without an upload."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from live_server import TOKEN, Live, tar

from dlicmd import Client
from dlicmd.sdk import backend, package, retry, submit
from dlicmd.sdk.errors import PackageError
from dlicmd.sdk.messages import silent
from dlicmd.sdk.staging import StagedFolder
from local_backend.runtime import bundles
from local_backend.runtime.housekeeper import Housekeeper
from local_backend.runtime.sizes import Sizes
from local_backend.submit import accept

ARGS = "--exec-start PyTorch --model-dir model --model-main train.py"


@pytest.fixture
def home(live: Live, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the server, which clients find as that of their local backend."""
    home = live.settings.home
    known = {"url": f"http://127.0.0.1:{live.port}", "pid": os.getpid(), "token": TOKEN}
    (home / "backend.json").write_text(json.dumps(known))
    monkeypatch.setenv("DLICMD_HOME", str(home))
    monkeypatch.setattr(submit, "UPLOADED_UP_TO", 100)
    return home


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o775)
    (folder / "sub" / "data.bin").write_bytes(bytes(range(256)) * 20_000)
    (folder / "link").symlink_to("train.py")
    (folder / "debug.log").write_text("x")
    (folder / ".dlicmdignore").write_text("*.log\n")
    return folder


def submitted(client: Client, model: Path) -> str:
    with client:
        return str(client.submit("PyTorch", {"model-dir": model, "model-main": "train.py"})["id"])


def no_upload(*_: object) -> None:
    raise AssertionError("the folder must not be uploaded")


def nothing_staged(home: Path) -> bool:
    return not os.listdir(home / "staging") and not os.listdir(home / "incoming")


def test_a_staged_folder_is_the_same_job_as_an_uploaded_one(
    live: Live, home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = submitted(Client(), model)
    monkeypatch.setattr(submit, "UPLOADED_UP_TO", 2**40)
    uploaded = submitted(Client(), model)
    assert live.row(staged).bundle == live.row(uploaded).bundle
    assert live.row(staged).workload.program == live.row(uploaded).workload.program
    code = live.paths(staged).submitted
    assert bundles.digest(code) == live.row(staged).bundle
    assert (code / "model" / "sub" / "data.bin").read_bytes() == bytes(range(256)) * 20_000
    assert os.access(code / "model" / "run.sh", os.X_OK) and not (code / "model" / "link").is_symlink()
    assert not (code / "model" / "debug.log").exists()
    (code / "model" / "train.py").write_text("changed")
    assert (model / "train.py").read_text() == "print(1)\n"
    assert nothing_staged(home)


@pytest.mark.parametrize("by_address", [False, True])
def test_a_folder_for_the_own_backend_is_not_uploaded(
    live: Live, home: Path, model: Path, monkeypatch: pytest.MonkeyPatch, by_address: bool
) -> None:
    monkeypatch.setattr(package, "pack", no_upload)
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    client = Client("127.0.0.1", live.port, http=True, token=TOKEN) if by_address else Client()
    assert (live.paths(submitted(client, model)).submitted / "model" / "sub" / "empty").is_dir()


def test_other_files_of_a_submission_are_stored_beside_the_folder(live: Live, home: Path, model: Path) -> None:
    (model.parent / "env.yaml").write_text("name: x\n")
    with Client() as client:
        options = {"model-dir": model, "model-main": "train.py", "conda-env-yaml": model.parent / "env.yaml"}
        found = client.submit("PyTorch", options)["id"]
    assert sorted(os.listdir(live.paths(found).submitted)) == ["env.yaml", "model"]


def test_another_user_uploads_the_folder(
    live: Live, home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(StagedFolder, "copy", no_upload)
    assert (live.paths(submitted(Client(), model)).submitted / "model" / "train.py").exists()


def test_a_client_with_another_home_uploads_the_folder(
    live: Live, home: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "backend.json").write_bytes((home / "backend.json").read_bytes())
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path / "other"))
    assert (live.paths(submitted(Client(), model)).submitted / "model" / "train.py").exists()
    assert os.listdir(tmp_path / "other") == ["backend.json"]


def test_a_repeated_submission_stages_the_folder_again(
    live: Live, home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = accept._prepare, list[bool]()

    def fail(*given: object) -> None:
        monkeypatch.setattr(accept, "_prepare", real)
        taken.append(not os.listdir(home / "staging"))
        raise RuntimeError("once")

    monkeypatch.setattr(retry, "_pause", lambda _count: 0.0)
    monkeypatch.setattr(accept, "_prepare", fail)
    found = submitted(Client(), model)
    assert taken == [True], "the first attempt must take over the folder"
    assert [one["id"] for one in live.call("GET", "/execs").json()] == [found]
    assert (live.paths(found).submitted / "model" / "train.py").exists() and nothing_staged(home)


def test_a_folder_that_cannot_be_copied_leaves_nothing(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat

    def longer(fd: int) -> os.stat_result:
        found = real(fd)
        return os.stat_result((*found[:6], found.st_size + 1, *found[7:]))

    with monkeypatch.context() as patch, pytest.raises(PackageError, match="became shorter"):
        patch.setattr("dlicmd.sdk.staging.os.fstat", longer)
        submitted(Client(), model)
    assert nothing_staged(home)
    (home / "staging").rename(home / "away")
    (home / "staging").write_text("")
    with pytest.raises(PackageError, match="staging"):
        submitted(Client(), model)


def staged(home: Path, fill: Callable[[Path], object]) -> str:
    """Stage a folder, and return the data part that names it."""
    folder = home / "staging" / secrets.token_hex(16)
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "train.py").write_text("print(1)\n")
    fill(folder / "model")
    return json.dumps({"stagedFolder": folder.name})


@pytest.mark.parametrize("fill", [
    lambda folder: (folder / "link").symlink_to("/etc/passwd"),
    lambda folder: os.mkfifo(folder / "pipe"),
    lambda folder: (folder / "new\nline").write_text("x"),
    lambda folder: (folder / "train.py").unlink(),
    lambda folder: folder.parent.rename(folder.parent.with_name("away")),
])
def test_a_staged_folder_with_anything_but_files_is_refused(
    live: Live, home: Path, fill: Callable[[Path], object]
) -> None:
    answer = live.submit(ARGS, data=staged(home, fill))
    assert answer.status == 400 and answer.error[1] in ("submission.files", "submission.no_program")
    assert live.nothing_left()


@pytest.mark.parametrize("name", ["../incoming", "/etc", "", 1, "0" * 31, "A" * 32])
def test_a_staged_folder_has_a_random_name(live: Live, name: object) -> None:
    answer = live.submit(ARGS, data=json.dumps({"stagedFolder": name}))
    assert answer.error == (400, "submission.data_part")


def test_a_submission_has_one_folder(live: Live, home: Path) -> None:
    data = staged(home, lambda _folder: None)
    answer = live.submit(ARGS, files={"x.modelDir.tar": tar({"model/train.py": b"1"})}, data=data)
    assert answer.error == (400, "submission.files") and live.nothing_left()


def test_a_server_for_several_users_takes_no_staged_folder(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    answer = live.submit(ARGS, data=staged(live.settings.home, lambda _folder: None))
    assert answer.error == (400, "submission.files") and live.nothing_left()


@pytest.mark.parametrize("limits", [{"upload_bytes": 1000}, {"unpacked_bytes": 1000}, {"unpacked_files": 2}])
def test_limits_hold_for_staged_folders(start: Callable[..., Live], limits: dict[str, int]) -> None:
    live = start(limits=limits)
    data = staged(live.settings.home, lambda folder: (folder / "more").write_bytes(bytes(2000)))
    answer = live.submit(ARGS, data=data)
    assert answer.error == (413, "submission.too_large") and live.nothing_left()


def test_folders_of_killed_clients_are_removed(live: Live, home: Path, model: Path) -> None:
    left = home / "staging" / secrets.token_hex(16)
    left.mkdir()
    used = StagedFolder(home / "staging", package.selected(model), silent)
    used.copy()
    Housekeeper(live.settings, live.database, Sizes(live.settings.paths), lambda: None).round()
    assert os.listdir(home / "staging") == [used.name]
    used.close()
    assert nothing_staged(home)
