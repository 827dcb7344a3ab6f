"""Pack a folder: the selection of files, and the archive."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import socket
import tarfile
from pathlib import Path

import pytest

from dlicmd.sdk import package, selection
from dlicmd.sdk.errors import PackageError, UsageProblem
from dlicmd.sdk.transport import FilePart


def packed(folder: Path, main: str | None = None) -> FilePart:
    """Return the archive of `folder`."""
    return package.pack(package.selected(folder, main))


def names(folder: Path) -> list[str]:
    """Return the names in the archive of `folder`, below its top."""
    part = packed(folder)
    with part.file, tarfile.open(fileobj=part.file, mode="r:gz") as archive:
        members = archive.getmembers()
    assert all(member.isreg() or member.isdir() for member in members)
    assert members[0].name == folder.name and members[0].isdir()
    return [member.name.removeprefix(f"{folder.name}/") for member in members[1:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "späte \"Ernte\""
    (path / "sub").mkdir(parents=True)
    (path / "train.py").write_text("print(1)\n")
    (path / "sub" / "data.bin").write_bytes(bytes(range(256)) * 500)
    return path


def test_an_archive_keeps_content_mode_and_order(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o775)
    part = packed(folder)
    with part.file:
        raw = part.file.read()
    assert part.size == len(raw)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(raw)), mode="r:") as archive:
        assert [name.removeprefix(folder.name).lstrip("/") for name in archive.getnames()] == [
            "", "run.sh", "sub", "sub/data.bin", "train.py"]
        assert archive.extractfile(f"{folder.name}/sub/data.bin").read() == bytes(range(256)) * 500
        assert {member.name.split("/")[-1]: member.mode for member in archive}["run.sh"] == 0o755
        assert {(member.uid, member.gid, member.uname, member.gname) for member in archive} == {(0, 0, "", "")}
    again = packed(folder)
    with again.file:
        assert again.file.read() == raw


def test_default_rules_and_the_ignore_file_exclude_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".git/config", "__pycache__/a.pyc", "env/pyvenv.cfg", "env/lib/x.py", ".venv/x", ".DS_Store",
                 "._train.py", "sub/x.pyc", "runs/1.log", "keep.log", "sub/__pycache__/q", "node_modules/m.js"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert names(folder) == ["keep.log", "runs", "runs/1.log", "sub", "sub/data.bin", "train.py"]
    (folder / ".dlicmdignore").write_text("# comment\n*.log\n!keep.log\n/sub/\n!._train.py\n")
    assert names(folder) == ["._train.py", "keep.log", "runs", "train.py"]
    assert capsys.readouterr().err == ""


def test_links_inside_the_folder_are_followed_and_others_skipped(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / f"{folder.name}-not").mkdir()
    (folder / "inside.py").symlink_to("train.py")
    (folder / "folder").symlink_to("sub")
    (folder / "out").symlink_to("../secret")
    (folder / "twin").symlink_to(f"../{folder.name}-not")
    (folder / "etc").symlink_to("/etc")
    (folder / "gone").symlink_to("nothing")
    (folder / "self").symlink_to("self")
    (folder / "sub" / "up").symlink_to("..")
    os.link(folder / "train.py", folder / "twice.py")
    assert names(folder) == ["folder", "folder/data.bin", "inside.py", "sub", "sub/data.bin", "train.py", "twice.py"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == selection.NAMED + 1 and "2 more" in said[-1], said
    assert "skipping etc (a link that leads outside the folder)" in said[0]


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert names(link) == ["sub", "sub/data.bin", "train.py"]


def test_pipes_and_sockets_are_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        at = os.getcwd()
        os.chdir(folder)  # socket names are short
        try:
            listener.bind("sock")
        finally:
            os.chdir(at)
        assert names(folder) == ["sub", "sub/data.bin", "train.py"]
    assert capsys.readouterr().err.count("neither a file nor a folder") == 2


def test_names_that_are_not_utf_8_and_deep_folders_are_packed(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    deep = folder / "/".join(["d" * 50] * 8)
    deep.mkdir(parents=True)
    (deep / "leaf").write_text("x")
    assert len(names(folder)) == 3 + 1 + 8 + 1


def test_the_largest_entries_of_a_large_folder_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("b.bin", "c.bin", "d.bin"):
        (folder / name).write_bytes(bytes(ord(name[0]) * 100))
    names(folder)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(selection, "LARGE", 1000)
    names(folder)
    [said] = capsys.readouterr().err.splitlines()
    assert re.findall(r"(\S+) \(", said) == ["sub/", "d.bin", "c.bin"] and ".dlicmdignore" in said


def test_memory_does_not_grow_with_the_folder(folder: Path) -> None:
    import tracemalloc

    with open(folder / "big.bin", "wb") as file:
        file.truncate(200 * 2**20)
    tracemalloc.start()
    try:
        packed(folder).file.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["train.py", "sub"])
def test_an_unreadable_file_or_folder_is_an_error(folder: Path, name: str) -> None:
    (folder / name).chmod(0)
    try:
        with pytest.raises(PackageError, match="cannot read"):
            packed(folder)
    finally:
        (folder / name).chmod(0o700)


def test_a_file_that_disappears_or_shrinks_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = package.selected(folder)
    whole = os.fstat

    def longer(fd: int) -> os.stat_result:
        found = whole(fd)
        return os.stat_result((*found[:6], found.st_size + 1, *found[7:]))

    with monkeypatch.context() as patch:
        patch.setattr(package.os, "fstat", longer)
        with pytest.raises(PackageError, match="became shorter"):
            package.pack(chosen)
    (folder / "train.py").unlink()
    with pytest.raises(PackageError, match=r"train\.py"):
        package.pack(chosen)


def test_a_full_disk_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this machine has no /dev/full")
    monkeypatch.setattr(package.tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(PackageError, match=os.strerror(errno.ENOSPC)):
        packed(folder)


def test_no_file_is_left_in_the_temporary_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(package.tempfile, "tempdir", str(place))
    part = packed(folder)
    assert os.listdir(place) == []
    part.file.close()
    monkeypatch.setattr(package.tempfile, "tempdir", str(place / "missing"))
    with pytest.raises(PackageError, match="TMPDIR"):
        packed(folder)


def test_the_main_program_must_be_packed(folder: Path) -> None:
    (folder / ".dlicmdignore").write_text("train.py\n")
    with pytest.raises(UsageProblem, match=r"'train\.py'"):
        packed(folder, "train.py")
    (folder / ".dlicmdignore").write_text("*\n")
    with pytest.raises(UsageProblem, match=str(folder)):
        packed(folder)
    (folder / ".dlicmdignore").write_bytes(b"\xff\xfe")
    with pytest.raises(PackageError, match="dlicmdignore"):
        packed(folder)


def test_an_ignore_file_may_include_gitignore(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".gitignore").write_text("*.bin\n")
    assert names(folder) == [".gitignore", "sub", "sub/data.bin", "train.py"]
    (folder / ".dlicmdignore").write_text("#!include:.gitignore\n.gitignore\n")
    assert names(folder) == ["sub", "train.py"]
    assert [(one.name, one.why) for one in package.selected(folder).left_out] == [
        (".dlicmdignore", ".dlicmdignore (default)"), (".gitignore", ".gitignore (.dlicmdignore)"),
        ("sub/data.bin", "*.bin (.gitignore)")]
    (folder / ".dlicmdignore").write_text("#!include:missing\n")
    with pytest.raises(PackageError, match="missing"):
        packed(folder)
    assert capsys.readouterr().err == ""


def test_a_gitignore_that_excludes_much_of_a_large_folder_is_mentioned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(selection, "LARGE", 1000)
    (folder / ".gitignore").write_text("*.log\n")
    packed(folder)
    assert "#!include:" not in capsys.readouterr().err
    (folder / ".gitignore").write_text("sub/\n")
    packed(folder)
    assert "125.0K" in capsys.readouterr().err.splitlines()[1]
    (folder / ".dlicmdignore").write_text("sub/\n")
    packed(folder)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("typed", "found"), [
    ("train.py", "train.py"), ("./sub/x.py", "sub/x.py"), ("some/{name}/sub/x.py", "sub/x.py"),
    ("{name}/train.py", "train.py"), ("/abs/olute/train.py", "train.py"), ("../train.py", "train.py"),
    ("x.py", None), ("..", None), ("sub", None),
])
def test_the_program_is_found_by_several_forms_of_its_path(folder: Path, typed: str, found: str | None) -> None:
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "x.py").write_text("1")
    typed = typed.replace("{name}", folder.name)
    if found is None:
        with pytest.raises(UsageProblem, match="no file"):
            package.find_program(folder, typed)
    else:
        assert package.find_program(folder, typed) == found


def test_the_base_name_of_a_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert package.base_name(Path()) == tmp_path.name
    assert package.base_name(Path("a/b/")) == "b"
    assert package.base_name(Path("a/..")) == tmp_path.name


def test_secrets_are_left_out_or_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".ssh/id_rsa", "sub/id_ed25519", ".netrc", ".aws/credentials", ".dlicmd", ".env", "tls.pem"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("secret")

    def sent() -> tuple[list[str], list[str]]:
        selection = package.selected(folder, None)
        return [entry.name for entry in selection.files], capsys.readouterr().err.splitlines()

    files, said = sent()
    assert files == [".env", "sub/data.bin", "tls.pem", "train.py"] and len(said) == 2
    assert all(name in said[0] for name in (".ssh/", "sub/id_ed25519", ".netrc", ".aws/", ".dlicmd"))
    assert ".env, tls.pem" in said[1]
    (folder / ".dlicmdignore").write_text("!.netrc\n!.ssh/\n!id_rsa\n!.env\ntls.pem\n")
    files, said = sent()
    assert files == [".env", ".netrc", ".ssh/id_rsa", "sub/data.bin", "train.py"]
    assert len(said) == 1 and ".netrc" not in said[0] and ".env" not in said[0]
