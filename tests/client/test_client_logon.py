"""Logon, logoff and the token file."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import BASE, TOKEN, FakeServer, Reply

from dlicmd.cli import auth
from dlicmd.sdk import paths
from dlicmd.sdk.errors import Denied, TokenFileError


@pytest.fixture
def server(fake: FakeServer) -> list[str]:
    return ["--rest-host", "127.0.0.1", "--rest-port", str(fake.port), "--http"]


def test_logon_stores_the_token_and_does_not_show_it(desk: Desk, fake: FakeServer, server: list[str]) -> None:
    done = desk.run("--logon", *server, "--username", "bøb", given=b"pa:ss w\xc3\xb6rd\n")
    assert done.code == 0, done
    assert json.loads(done.out) == {"accessToken": "***", "username": "alice"}
    assert TOKEN not in done.out + done.err
    [seen] = fake.seen
    assert base64.b64decode(seen.headers["authorization"].removeprefix("Basic ")).decode() == "bøb:pa:ss wörd"
    file = desk.home / ".dlicmd"
    assert file.read_bytes() == TOKEN.encode() and file.stat().st_mode & 0o777 == 0o600
    assert desk.run("--exec-get-all", *server).code == 0
    assert fake.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"

    done = desk.run("--logoff", *server)
    assert done.code == 0 and done.out == "bye\n" and not file.exists()
    assert fake.seen[-1].path == "/auth/v1/logoff" and fake.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert desk.run("--logoff", *server).code == 0
    done = desk.run("--exec-get-all", *server)
    assert done.code == 9 and "Unable to find token from cookies. Please logon first." in done.err


def test_user_and_password_are_read_from_standard_input(desk: Desk, fake: FakeServer, server: list[str]) -> None:
    assert desk.run("--logon", *server, given=b"bob\npa:ss\n").code == 0
    assert base64.b64decode(fake.seen[0].headers["authorization"][6:]) == b"bob:pa:ss"
    done = desk.run("--logon", *server, "-o", "json", given=b"")
    assert (done.code, done.error) == (2, "client.usage") and len(fake.seen) == 1


@pytest.mark.parametrize("status", [500, 404, 401])
def test_logoff_removes_the_token_if_the_server_cannot_revoke_it(
    desk: Desk, fake: FakeServer, server: list[str], status: int,
) -> None:
    (desk.home / ".dlicmd").write_text(TOKEN)
    (desk.home / ".dlicmd").chmod(0o600)
    fake.replies["POST", "/auth/v1/logoff"] = Reply(status, b"Error: no.\n")
    done = desk.run("--logoff", *server, "-o", "json")
    assert not (desk.home / ".dlicmd").exists()
    assert (done.code, done.error) == ((9, "server.denied") if status == 401 else (1, "server.refused"))


def test_credentials_come_from_environment_or_command_line(desk: Desk, fake: FakeServer, server: list[str]) -> None:
    desk.environment |= {"DLICMD_USERNAME": "u", "DLICMD_PASSWORD": "p"}
    assert desk.run("--logon", *server).code == 0
    assert desk.run("--logon", *server, "--password=q", "--username=v").code == 0
    assert [base64.b64decode(seen.headers["authorization"][6:]) for seen in fake.seen] == [b"u:p", b"v:q"]


@pytest.mark.parametrize(("given", "words"), [(b"", ["--username", "u"]), (b"\n", ["--username", "u"]), (b"x", []),
                                              (b"x", ["--username", "a:b"])])
def test_a_logon_without_credentials_is_a_usage_error(
    desk: Desk, fake: FakeServer, server: list[str], given: bytes, words: list[str]
) -> None:
    done = desk.run("--logon", *server, *words, given=given)
    assert done.code == 2 and len(done.err.splitlines()) == 1 and not fake.seen


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(401, b"Error 401: wrong password.\n"), 9), (Reply(400, b'{"message": "bad"}'), 9),
        (Reply(500, b"down"), 1), (Reply(200, b"{}"), 1), (Reply(200, b"<html>"), 1),
        (Reply(200, b'{"accessToken": ""}'), 1), (Reply(200, b'{"accessToken": "a\\nb"}'), 9),
    ],
)
def test_a_refused_logon_is_reported(desk: Desk, fake: FakeServer, server: list[str], reply: Reply, code: int) -> None:
    fake.replies["GET", "/auth/v1/logon"] = reply
    (desk.home / ".dlicmd").write_text("old")
    done = desk.run("--logon", *server, "--username", "u", "--password", "s3cret")
    assert done.code == code and len(done.err.splitlines()) == 1 and "s3cret" not in done.err
    assert (desk.home / ".dlicmd").exists() == (code != 9), "a denied logon must remove the token of the previous user"


def test_token_sources_have_an_order_of_precedence(desk: Desk, fake: FakeServer, server: list[str]) -> None:
    fake.tokens = {"file", "environment", "option"}
    (desk.home / ".dlicmd").write_text("file\n")

    def used(*words: str) -> str:
        assert desk.run("--exec-get-all", *server, *words).code == 0
        return fake.seen[-1].headers["authorization"].removeprefix("Bearer ")

    assert used() == "file"
    desk.environment["DLICMD_TOKEN"] = "environment"
    assert used() == "environment"
    assert used("--jwt-token", "option") == used("--jwt-token=option") == "option"
    done = desk.run("--exec-get-all", *server, "--jwt-token", "two\nlines: x")
    assert done.code == 9 and len(fake.seen) == 4


def test_the_local_backend_gets_only_its_own_token(desk: Desk, local: FakeServer) -> None:
    (desk.home / ".dlicmd").write_text("of-another-server")
    desk.environment["DLICMD_TOKEN"] = "of-another-server"
    assert desk.run("--exec-get-all").code == 0
    assert local.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"
    local.tokens = {"changed"}
    assert desk.run("--exec-get-all").code == 9


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "token_file", lambda: tmp_path / ".dlicmd")
    return tmp_path / ".dlicmd"


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("before", [None, 0o644, 0o400, 0o777])
def test_the_token_file_is_private_and_exact(file: Path, umask: int, before: int | None) -> None:
    if before is not None:
        file.write_text("a much longer token that was there before")
        file.chmod(before)
    kept = os.umask(umask)
    try:
        auth.write_token("short")
    finally:
        os.umask(kept)
    assert file.read_bytes() == b"short" and file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == [".dlicmd"]
    assert auth.read_token() == "short"


def test_a_readable_token_file_becomes_private_when_it_is_read(file: Path) -> None:
    file.write_text("  token\n")
    file.chmod(0o644)
    assert auth.read_token() == "token" and file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "fifo", "foreign"])
def test_irregular_or_foreign_token_files_are_refused(file: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = file.parent / "target"
    if kind == "link":
        target.write_text("untouched")
    if "link" in kind:
        file.symlink_to(target)
    elif kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    else:
        file.write_text("planted")
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    for act in (auth.read_token, lambda: auth.write_token("new")):
        with pytest.raises(TokenFileError, match=str(file)):
            act()
    if kind == "link":
        assert target.read_text() == "untouched"
    assert not (kind == "dangling link" and target.exists())


@pytest.mark.parametrize("content", [b"two words", b"a\nb", b"\xff\xfe", b"x" * (2**16 + 1), b"a\x00b"])
def test_an_invalid_token_is_refused_and_not_shown(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(Denied) as caught:
        auth.read_token()
    assert content.decode("latin-1") not in str(caught.value)


def test_a_missing_or_empty_token_file_means_no_token(file: Path) -> None:
    assert auth.read_token() is None
    file.write_text("\n")
    assert auth.read_token() is None
    auth.forget_token()
    auth.forget_token()


def test_http_to_a_remote_server_is_reported_as_unencrypted(desk: Desk) -> None:
    desk.environment["DLICMD_RETRIES"] = "0"
    done = desk.run("--exec-get-all", "--rest-host", "host.invalid", "--http", "--jwt-token", "t")
    assert done.code == 8 and "unencrypted" in done.err and BASE not in done.err


def test_logoff_revokes_the_environment_token_and_the_stored_token(
    desk: Desk, fake: FakeServer, server: list[str]
) -> None:
    (desk.home / ".dlicmd").write_text("kept")
    (desk.home / ".dlicmd").chmod(0o600)
    fake.tokens |= {"kept"}
    desk.environment["DLICMD_TOKEN"] = TOKEN
    assert desk.run("--logoff", *server).code == 0
    assert [seen.headers["authorization"] for seen in fake.seen] == [f"Bearer {TOKEN}", "Bearer kept"]
    assert not (desk.home / ".dlicmd").exists()
