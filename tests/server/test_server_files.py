"""The files that a program wrote: their list, and each of them whole or in parts."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from live_server import Answer, Live, quoted, tar
from test_server_swapped_logs import FILES, SECRET

from dlicmd.contract import states
from local_backend import files
from local_backend.api import files as files_api
from local_backend.runtime import written
from local_backend.runtime.paths import worker_task

FOLDER = "--exec-start PyTorch --model-dir model --model-main train.py"


class Job:
    """A submitted job whose program is played by the test."""

    def __init__(self, live: Live, files: dict[str, bytes] | None = None) -> None:
        packed = tar({f"model/{name}": content for name, content in {"train.py": b"1\n", **(files or {})}.items()})
        self.live = live
        self.id = live.submitted(FOLDER, files={"x.modelDir.tar": packed})
        self.paths = live.paths(self.id)
        self.code = self.paths.code(live.row(self.id).workload)

    def write(self, path: Path, content: bytes = b"x") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def files(self) -> list[dict[str, Any]]:
        found = self.live.call("GET", f"/execs/{self.id}/files").json()
        assert found["complete"] is True
        return list(found["files"])

    def names(self) -> list[str]:
        return [file["path"] for file in self.files()]

    def content(self, path: str, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.live.call("GET", f"/execs/{self.id}/files/content?path={quoted(path)}", headers=sent)


def test_files_below_both_folders_are_listed_and_returned(live: Live) -> None:
    job = Job(live)
    job.write(job.code / "out" / "ä b.txt", b"12345")
    job.write(job.paths.model / "a.pth", b"123")
    job.write(job.paths.root / "own" / "c", b"")
    os.utime(job.paths.model / "a.pth", ns=(0, 1_700_000_000_123_456_789))
    found = job.files()
    assert [(file["path"], file["bytes"], file["where"]) for file in found] == [
        ("model/a.pth", 3, "result"), ("out/ä b.txt", 5, "code"), ("own/c", 0, "result")]
    assert found[0]["modified"] == "2023-11-14T22:13:20.123456Z"
    assert [job.content(file["path"]).body for file in found] == [b"123", b"12345", b""]


def test_submitted_files_are_listed_only_when_they_have_changed(live: Live) -> None:
    job = Job(live, {"conf.json": b"{}", "same.txt": b"abc", "size.txt": b"abc"})
    assert job.names() == [] and job.content("train.py").error == (400, "exec.no_file")
    (job.code / "conf.json").write_text('{"a": 1}')
    (job.code / "same.txt").write_text("abc")
    (job.code / "size.txt").write_text("abd")
    (job.code / "train.py").chmod(0o700)
    assert job.names() == ["conf.json", "size.txt"] and job.content("size.txt").body == b"abd"
    assert job.content("same.txt").error == (400, "exec.no_file")


def test_two_files_with_one_path_are_told_apart(live: Live) -> None:
    job = Job(live)
    job.write(job.code / "model" / "a", b"code")
    assert job.names() == ["model/a"] and job.content("model/a").body == b"code"
    job.write(job.paths.model / "a", b"result")
    assert job.names() == ["_submitted_code/model/model/a", "model/a"]
    assert [job.content(name).body for name in job.names()] == [b"code", b"result"]


def test_output_that_is_a_log_and_files_of_python_are_left_out(live: Live) -> None:
    job = Job(live)
    logs = job.paths.log_dir(worker_task(1))
    for name in ("stdout", "stderr", "evaluation-metrics.txt", "dlicmd-log.jsonl", "more/stdout"):
        job.write(logs / name)
    job.write(job.code / "__pycache__" / "train.pyc")
    folder = logs.relative_to(job.paths.root)
    assert job.names() == [f"{folder}/evaluation-metrics.txt", f"{folder}/more/stdout"]
    for path in (f"{folder}/stdout", f"{folder}/dlicmd-log.jsonl", "__pycache__/train.pyc",
                 "_submitted_code/model/__pycache__/train.pyc"):
        assert job.content(path).error == (400, "exec.no_file")


def test_a_list_of_too_many_files_is_cut(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(live)
    for number in range(5):
        job.write(job.code / f"{number}")
    monkeypatch.setattr(written, "MOST", 3)
    found = live.call("GET", f"/execs/{job.id}/files").json()
    assert len(found["files"]) == 3 and found["complete"] is False


def test_a_name_that_is_not_text_is_left_out(live: Live) -> None:
    job = Job(live)
    for name in (b"\xff", b"a\nb", b"plain"):
        Path(os.fsdecode(os.fsencode(job.code) + b"/" + name)).write_bytes(b"x")
    found = live.call("GET", f"/execs/{job.id}/files").json()
    assert [file["path"] for file in found["files"]] == ["plain"] and found["complete"] is False


def test_parts_of_a_file(live: Live) -> None:
    job, content = Job(live), os.urandom(100_000)
    job.write(job.code / "big", content)
    whole = job.content("big")
    etag = f'"{hashlib.sha256(content).hexdigest()}"'
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    assert whole.body == content and whole.headers["etag"] == etag
    assert whole.headers["repr-digest"] == f"sha-256=:{digest}:" and whole.headers["content-length"] == "100000"
    rest = job.content("big", Range="bytes=99990-", If_Range=etag)
    assert (rest.status, rest.body) == (206, content[99_990:])
    assert rest.headers["content-range"] == "bytes 99990-99999/100000"
    job.write(job.code / "big", content[::-1])
    again = job.content("big", Range="bytes=99990-", If_Range=etag)
    assert (again.status, again.body) == (200, content[::-1])
    beyond = job.content("big", Range="bytes=100000-")
    assert beyond.error == (416, "exec.result_range") and beyond.headers["content-range"] == "bytes */100000"


@pytest.mark.parametrize("path", [
    "", ".", "..", "/etc/passwd", "../../../etc/passwd", "out/../../x", "./out/a", "out//a", "out/a/", "out", "nothing",
    "out/a\0b", "..\\x", "_submitted_code/../secret", "_submitted_code/model/train.py", "out/linked", "far/secret",
    "out/second",
])
def test_a_path_that_is_not_in_the_list_is_refused(live: Live, tmp_path: Path, path: str) -> None:
    job = Job(live)
    job.write(job.code / "out" / "a")
    (tmp_path / "secret").write_text(SECRET)
    job.paths.root.with_name("secret").write_text(SECRET)
    (job.code / "out" / "linked").symlink_to(tmp_path / "secret")
    (job.code / "far").symlink_to(tmp_path)
    os.link(tmp_path / "secret", job.code / "out" / "second")
    assert job.names() == ["out/a"]
    assert job.content(path).error == (400, "exec.no_file")


@pytest.mark.parametrize("deed", FILES)
def test_a_special_file_is_neither_listed_nor_read(live: Live, tmp_path: Path, deed: str) -> None:
    (tmp_path / "secret").write_text(SECRET)
    job = Job(live, {"code.txt": b"abc"})
    for place in (job.code / "code.txt", job.paths.model / "weights"):
        place.unlink(missing_ok=True)
        FILES[deed](place, tmp_path / "secret")
        assert place.name not in " ".join(job.names())
    for path in ("code.txt", "model/weights"):
        assert job.content(path).error == (400, "exec.no_file")


def test_a_result_folder_replaced_by_a_link_is_not_followed(live: Live, tmp_path: Path) -> None:
    job = Job(live)
    (tmp_path / "a").write_text(SECRET)
    job.paths.root.rename(tmp_path / "away")
    job.paths.root.symlink_to(tmp_path)
    assert job.names() == [] and job.content("a").error == (400, "exec.no_file")


def test_the_files_of_an_unknown_exec_are_refused(live: Live) -> None:
    for call in ("files", "files/content?path=a"):
        assert live.call("GET", f"/execs/local-99/{call}").error == (400, "exec.not_found")


def test_a_time_after_the_year_9999_is_shown_as_its_end(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(live)
    job.write(job.paths.root / "far")
    real = written.regular_files

    def late(*args: Any) -> Iterator[tuple[str, os.stat_result]]:  # few file systems can store such a time
        for name, status in real(*args):
            changed = SimpleNamespace(**{key: getattr(status, key) for key in dir(status) if key.startswith("st_")})
            changed.st_mtime_ns = 2**40 * 10**9
            yield name, cast("os.stat_result", changed)

    monkeypatch.setattr(written, "regular_files", late)
    assert [file["modified"] for file in job.files()] == ["9999-12-31T23:59:59.000000Z"]


@pytest.mark.parametrize("what", ["open", "lstat"])
def test_a_folder_that_the_server_may_not_read_is_left_out(
    live: Live, monkeypatch: pytest.MonkeyPatch, what: str,
) -> None:
    job = Job(live)
    job.write(job.code / "a.txt")
    job.write(job.code / "locked" / "b.txt")
    real = getattr(os, what)

    def refusing(path: Any, *args: Any, **named: Any) -> Any:  # the owner root of a test may read everything
        if path == ("locked" if what == "open" else "b.txt"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **named)

    monkeypatch.setattr(files.os, what, refusing)
    answer = live.call("GET", f"/execs/{job.id}/files")
    assert answer.status == 200
    assert [file["path"] for file in answer.json()["files"]] == ["a.txt"] and answer.json()["complete"] is False


def test_a_large_file_that_grows_is_not_hashed_while_its_job_runs(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(live)
    monkeypatch.setattr(files_api, "_SMALL", 3)
    job.write(job.code / "growing", b"12345")
    job.write(job.code / "small", b"123")
    live.move(job.id, states.PENDING, states.RUNNING)
    growing = job.content("growing")
    assert growing.body == b"12345" and not {"etag", "repr-digest"} & set(growing.headers)
    assert job.content("growing", Range="bytes=3-").body == b"45"
    assert job.content("growing", Range="bytes=3-", If_Range='"x"').body == b"12345"
    assert job.content("growing", Range="bytes=9-").error == (416, "exec.result_range")
    assert "etag" in job.content("small").headers
    live.move(job.id, states.FINISHED)
    assert "etag" in job.content("growing").headers
