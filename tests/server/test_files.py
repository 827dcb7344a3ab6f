"""Files that programs have replaced, and folders that are hard to remove."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from local_backend import files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with files, and with links that lead out of it."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    top = tmp_path / "tree"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "file").write_text("gone")
    (top / "a" / "link").symlink_to(kept)
    (top / "link").symlink_to(kept / "file")
    return top


def test_a_tree_is_removed_without_following_its_links(tree: Path, tmp_path: Path) -> None:
    files.remove_tree(tree)
    files.remove_tree(tree)  # a missing folder is no error
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept" / "file").read_text() == "kept"


def test_a_link_in_place_of_the_folder_is_removed_alone(tree: Path, tmp_path: Path) -> None:
    link = tmp_path / "replaced"
    link.symlink_to(tree)
    files.remove_tree(link)
    assert not link.is_symlink() and (tree / "a" / "b" / "file").exists()


def test_folders_nested_more_deeply_than_descriptors_allow_are_removed(tmp_path: Path) -> None:
    (top := tmp_path / "deep").mkdir()
    (top / Path(*"d" * 150)).mkdir(parents=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest_used = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest_used + 50, limits[1]))
    try:
        files.remove_tree(top)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not top.exists()


@pytest.mark.parametrize("step", ["unlink", "rmdir", "scandir"])
def test_permissions_that_a_program_took_away_are_restored(
    tree: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The superuser needs no permissions, so the first call of each step fails instead."""
    real: Callable[..., object] = getattr(os, step)
    refused: list[object] = []

    def refuse(*arguments: object, **more: object) -> object:
        if not refused:
            refused.append(arguments)
            raise PermissionError
        return real(*arguments, **more)

    monkeypatch.setattr(os, step, refuse)
    files.remove_tree(tree)
    assert refused and not tree.exists()


def test_a_folder_that_cannot_be_removed_is_reported(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(PermissionError):
        files.remove_tree(tree)


def test_only_whole_json_of_regular_files_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good").write_text('{"a": 1}')
    for name, text in (("cut", '{"a'), ("deep", "[" * 100000), ("empty", "")):
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("good")
    os.mkfifo(tmp_path / "pipe")
    assert files.read_json(tmp_path / "good") == {"a": 1}
    for name in ("cut", "deep", "empty", "link", "pipe", "missing", "good/below"):
        assert files.read_json(tmp_path / name) is None, name
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        assert files.read_json(tmp_path / "socket") is None
    with pytest.raises(IsADirectoryError):
        files.read_json(tmp_path)
    monkeypatch.setattr(files, "_LARGEST", 3)
    assert files.read_json(tmp_path / "good") is None


def test_only_plain_files_below_a_folder_are_opened(tree: Path, tmp_path: Path) -> None:
    def text(path: Path) -> bytes | None:
        found = files.open_regular(path, tree)
        if found is None:
            return None
        with found:
            return found.read()

    assert text(tree / "a" / "b" / "file") == b"gone"
    os.link(tree / "a" / "b" / "file", tree / "second")
    for name in ("a/b/file", "second", "a/link/file", "link", "a", "missing", "a/b/file/below"):
        assert text(tree / name) is None, name
    assert files.open_regular(tmp_path / "no" / "file", tmp_path / "no") is None
    assert files.open_folder(tree / "a" / "link", tree) is None
    assert files.open_folder(tree / "a", tmp_path / "no") is None


def test_listed_files_are_regular_and_outside_of_folders_left_out(tree: Path) -> None:
    (tree / "c").mkdir()
    (tree / "c" / "other").write_text("12")
    top = os.open(tree, files.FOLDER)
    try:
        assert {name: found.st_size for name, found in files.regular_files(top)} == {"a/b/file": 4, "c/other": 2}
        assert [name for name, _ in files.regular_files(top, {"a"})] == ["c/other"]
    finally:
        os.close(top)


@pytest.mark.parametrize(("call", "refused"), [("open", "a/b"), ("lstat", "file")])
def test_folders_that_may_not_be_read_are_named_or_raise(
    tree: Path, monkeypatch: pytest.MonkeyPatch, call: str, refused: str
) -> None:
    """The superuser may read everything, so the system call fails instead."""
    (tree / "c").mkdir()
    (tree / "c" / "other").write_text("12")
    real: Callable[..., object] = getattr(os, call)

    def refuse(path: str, *arguments: object, **more: object) -> object:
        if path == refused.rpartition("/")[2]:
            raise PermissionError(errno.EACCES, "no")
        return real(path, *arguments, **more)

    top = os.open(tree, files.FOLDER)
    try:
        monkeypatch.setattr(os, call, refuse)
        locked: list[str] = []
        assert [name for name, _ in files.regular_files(top, (), locked)] == ["c/other"] and locked == ["a/b"]
        with pytest.raises(PermissionError):
            list(files.regular_files(top))
    finally:
        os.close(top)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_atomic(path, b"old", durable=False)

    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_disk_without_room_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.full_disk(tmp_path) is None and files.full_disk(tmp_path / "missing") is None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))  # type: ignore[attr-defined]
    assert "full" in str(files.full_disk(tmp_path))


def test_a_folder_is_made_below_a_folder_and_links_on_the_way_are_removed(tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    top.mkdir()
    elsewhere.mkdir()
    os.close(files.make_folder(top / "a" / "b", top))
    assert (top / "a" / "b").is_dir()
    (top / "c").symlink_to(elsewhere)
    (top / "a" / "d").write_text("x")
    for folder in (top / "c" / "b", top / "a" / "d"):
        os.close(files.make_folder(folder, top))
        assert folder.is_dir()
    assert not (top / "c").is_symlink() and not list(elsewhere.iterdir())
