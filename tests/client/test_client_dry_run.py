"""A dry run prints the request that the same words send, and sends nothing."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest
from client_desk import Desk
from fake_server import FakeServer, Seen


def request(desk: Desk, *words: str) -> dict:
    done = desk.run("--exec-start", *words[:-1], "--dry-run", words[-1], "-o", "json")
    assert done.code == 0, done
    return json.loads(done.out)


def post(server: FakeServer) -> Seen:
    [seen] = server.requests("POST")
    return seen


def test_the_printed_request_is_the_request_that_is_sent(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    desk.model()
    (desk.folder / "env.yaml").write_text("name: x\n")
    words = ["PyTorch", "--model-main", "model/train.py", "--conda-env-yaml", "env.yaml", *remote, "--lr=a b"]
    found = request(desk, *words)
    assert not fake.requests("POST")
    assert desk.run("--exec-start", *words).code == 0
    seen = post(fake)
    assert (found["method"], found["path"]) == ("POST", seen.target)
    assert found["headers"]["Content-Length"] == str(len(seen.body))
    assert found["headers"]["Content-Type"].startswith("multipart/form-data; boundary=")
    assert "fake-token-1" not in str(found)
    assert found["parts"] == [
        {"name": "file", "filename": name, "size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        for name, text in (("train.py", b"print(1)\n"), ("env.yaml", b"name: x\n"))]
    assert found["data"] is None


def test_the_data_part_contains_argv_if_the_server_accepts_it(desk: Desk, local: FakeServer) -> None:
    (desk.folder / "train.py").write_text("print(1)\n")
    main = ["--model-main", "train.py"]
    found = request(desk, "PyTorch", *main, "--data-source", '[{"type": "fs"}]', "--msd-env", "A=1", "--lr=1")
    argv = ["--exec-start", "PyTorch", *main, "--msd-env", "A=1", "--lr=1"]
    assert found["data"] == {"dataSource": [{"type": "fs"}], "argv": argv}
    local.conf["DLICMD_EXTENSIONS"] = "follow"
    assert request(desk, "PyTorch", *main, "--lr=1")["data"] is None


def test_a_dry_run_starts_no_backend(desk: Desk) -> None:
    desk.model()
    done = desk.run("--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py", "--dry-run",
                    "--follow", "--ig", "x")
    assert done.code == 0, done
    assert list(desk.state.iterdir()) == []
    assert done.err.count("\n") == 1 and "--ig" in done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("POST /platform/rest/deeplearning/v1/execs/?args=--exec-start%20PyTorch%20--model-dir")
    assert "Accept: application/json, text/plain;q=0.9" in lines
    assert any(line.startswith("part file: tmp") and " bytes, sha256 " in line for line in lines)
    assert 'part data: {\n  "argv": [' in done.out and "Authorization" not in done.out


def test_a_dry_run_does_not_restart_a_dead_backend(desk: Desk) -> None:
    (desk.folder / "train.py").write_text("print(1)\n")
    (desk.state / "backend.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1, "token": "x"}')
    assert request(desk, "PyTorch", "--model-main", "train.py", "--lr=1")["data"] is not None
    assert [path.name for path in desk.state.iterdir()] == ["backend.json"]


def test_secrets_are_masked(desk: Desk, local: FakeServer) -> None:
    words = ["PyTorch", "--user-cmd", "--msd-env", "HF_TOKEN=s3cret", "--msd-env=API_KEY=s3cret",
             "--cs-url-bearer", "s3cret", "--data-source",
             '[{"type": "s3", "connection": {"secret_access_key": "s3cret"}, "location": {"bucket": "b"}}]',
             "--msd-env", "A=1", "--dry-run", "--", "x"]
    for form in ([], ["-o", "json"], ["-o", "yaml"]):
        done = desk.run("--exec-start", *words[:-3], *form, *words[-3:])
        assert done.code == 0, done
        assert "s3cret" not in done.out + done.err
        assert "HF_TOKEN%3D***" in done.out.replace("\n", "") and "HF_TOKEN=***" in done.out


@pytest.mark.parametrize("words", [["--exec-delete", "w-1"], ["--exec-delete-all"], ["--follow", "w-1"]])
def test_dry_run_is_only_for_submissions(desk: Desk, local: FakeServer, words: list[str]) -> None:
    done = desk.run(*words, "--dry-run", "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and "--dry-run" in done.err and not local.seen


def test_the_printed_digest_identifies_the_archive(desk: Desk, local: FakeServer) -> None:
    folder = desk.model()
    first, second = (request(desk, "PyTorch", "--model-dir", "model", "--lr=1")["parts"][0] for _ in range(2))
    assert first["sha256"] == second["sha256"]
    (folder / "train.py").write_text("print(2)\n")
    assert request(desk, "PyTorch", "--model-dir", "model", "--lr=1")["parts"][0]["sha256"] != first["sha256"]
    assert desk.run("--exec-start", "PyTorch", "--model-dir", "model").code == 0
    start = post(local).body.index(b"\x1f\x8b")
    with tarfile.open(fileobj=io.BytesIO(post(local).body[start:]), mode="r:gz") as archive:
        assert archive.getnames() == ["model", "model/train.py"]


def test_a_dry_run_fails_if_a_remote_server_is_unreachable(desk: Desk) -> None:
    desk.environment["DLICMD_RETRIES"] = "0"
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--dry-run", "--rest-host", "127.0.0.1", "--rest-port",
                    "1", "--http", "--jwt-token", "x", "--", "true")
    assert done.code == 8 and done.out == ""


def test_a_dry_run_lists_the_files_of_the_folder(desk: Desk, local: FakeServer) -> None:
    folder = desk.model()
    for number in range(25):
        (folder / f"{number:02}.bin").write_bytes(bytes(1000 + number))
    (folder / "out.log").write_text("x")
    (folder / "broken").symlink_to("nothing")
    (folder / ".dlicmdignore").write_text("*.log\n")
    found = request(desk, "PyTorch", "--model-dir", "model", "--lr=1")["folder"]
    assert (found["count"], found["size"], found["path"]) == (26, 25 * 1012 + 9, str(folder))
    assert {"path": "03.bin", "size": 1003} in found["files"] and len(found["files"]) == 26
    assert found["leftOut"] == [
        {"path": ".dlicmdignore", "why": ".dlicmdignore (default)"},
        {"path": "out.log", "why": "*.log (.dlicmdignore)"}, {"path": "broken", "why": "a broken link"}]
    text = desk.run("run", "model/train.py", "--dry-run").out
    shown = [line.split()[-1] for line in text.splitlines() if line.endswith(".bin")]
    assert shown == [f"{number:02}.bin" for number in range(24, 4, -1)], "the 20 largest, the largest first"
    assert "26 files" in text and "6 smaller files" in text and "out.log: *.log (.dlicmdignore)" in text


def test_a_dry_run_of_a_large_folder_copies_nothing(desk: Desk) -> None:
    with open(desk.model() / "weights", "wb") as file:
        file.truncate(17 * 2**20)
    found = request(desk, "PyTorch", "--model-dir", "model", "--lr=1")
    assert found["parts"] == [] and found["folder"]["transfer"] == "copy" and len(found["data"]["stagedFolder"]) == 32
    assert list(desk.state.iterdir()) == []
