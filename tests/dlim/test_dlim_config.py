"""`dlim config`: the server, tokens, the files that hold them, and what is shared with dlicmd."""

from __future__ import annotations

import json
import ssl
import stat
from pathlib import Path

import commands
import pytest
import trustme
from client_desk import DEADLINE
from dlim_desk import PASSWORD, SERVICE_TOKEN, USER, DlimDesk, ModelServer, failed
from fake_server import TOKEN


@pytest.fixture
def known(desk: DlimDesk, server: ModelServer) -> ModelServer:
    """The server as the current one of the user, with a stored token."""
    assert desk.run("config", "-c", server.address).code == 0
    assert desk.run("config", "-t", "-u", USER, "-x", PASSWORD).code == 0
    server.seen.clear()
    return server


def test_a_token_is_stored_for_the_owner_alone(desk: DlimDesk, known: ModelServer) -> None:
    file = desk.home / ".config" / "dlicmd" / "servers.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    [stored] = json.loads(file.read_text())["servers"].values()
    assert (stored["user"], stored["token"]) == (USER, TOKEN) and PASSWORD not in file.read_text()
    assert desk.run("model", "list").code == 0
    assert known.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"


def test_no_secret_is_printed(desk: DlimDesk, server: ModelServer) -> None:
    desk.run("config", "-c", server.address)
    for words in (["-t", "-u", USER, "-x", PASSWORD], ["-t", "-u", USER, "-x", "wrong-password"], []):
        done = desk.run("config", *words, "--debug-level", "debug")
        for secret in (TOKEN, PASSWORD, "wrong-password"):
            assert secret not in done.out + done.err


def test_the_service_token_is_printed_alone(desk: DlimDesk, known: ModelServer) -> None:
    assert desk.run("config", "-s").out == f"{SERVICE_TOKEN}\n"
    assert desk.run("config", "-s", "-u", USER, "-x", PASSWORD).out == f"{SERVICE_TOKEN}\n"
    assert json.loads(desk.run("config", "-s", "-o", "json").out) == {"service_token": SERVICE_TOKEN}


def test_an_api_token_stands_for_a_password(desk: DlimDesk, known: ModelServer) -> None:
    known.tokens = {"api-token-1"}
    assert desk.run("model", "list").code == 9
    assert desk.run("config", "-t", "-u", USER, "-k", "api-token-1").code == 0
    assert desk.run("model", "list").code == 0


def test_a_wrong_password_leaves_the_stored_token(desk: DlimDesk, known: ModelServer) -> None:
    done = desk.run("config", "-t", "-u", USER, "-x", "wrong", "-o", "json")
    assert (done.code, done.error) == (9, "auth.denied")
    assert desk.run("model", "list").code == 0


def test_dlicmd_uses_the_same_server_and_token(desk: DlimDesk, known: ModelServer) -> None:
    code, out, _ = commands.run("dlicmd.cli", ("ls", "-o", "json"), desk.environment, desk.folder, DEADLINE)
    assert (code, json.loads(out)) == (0, [])
    assert known.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"


def test_local_means_the_local_backend_again(desk: DlimDesk, known: ModelServer, local: ModelServer) -> None:
    assert desk.run("config", "-c", "local").code == 0
    assert json.loads(desk.run("config", "-o", "json").out) == {"server": "local", "user": "", "token": "not needed"}
    assert desk.run("config", "-t", "-u", USER, "-x", PASSWORD).code == 2


def test_the_token_of_the_command_line_needs_no_file(desk: DlimDesk, server: ModelServer) -> None:
    server.add("pingpong")
    (desk.home / ".config").mkdir()
    (desk.home / ".config").chmod(0o500)
    for words in (["--rest-server", server.address, "--jwt-token", TOKEN, "model", "list"],
                  ["model", "list", f"--rest-server={server.url}", f"--jwt-token={TOKEN}"]):
        done = desk.run(*words)
        assert (done.code, done.err) == (0, "") and "pingpong" in done.out


def test_a_profile_names_the_server(desk: DlimDesk, server: ModelServer) -> None:
    server.add("pingpong")
    folder = desk.home / ".config" / "dlicmd"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "profiles:\n  lab:\n    rest-host: 127.0.0.1\n    http: true\n    output: json\n"
        f"    rest-port: {server.port}\n")
    done = desk.run("model", "list", "--profile", "lab", "--jwt-token", TOKEN)
    assert json.loads(done.out)[0]["name"] == "pingpong"


@pytest.mark.parametrize("url", ["ftp://host/", "https://", "https://h:99999/", "https://h/other", "http://u:p@h/", ""])
def test_a_wrong_url_is_refused(desk: DlimDesk, url: str) -> None:
    assert desk.run("config", "-c", url, "-o", "json").error == "client.usage"
    assert desk.run("model", "list", "--rest-server", url).code == 2


@pytest.mark.parametrize("words", [["-u", "ada"], ["-t", "-x", "a", "-k", "b"], ["-q"], ["more"], ["-c"]])
def test_a_wrong_command_line_is_refused(desk: DlimDesk, words: list[str]) -> None:
    assert desk.run("config", *words).code == 2


def test_an_unreachable_server_is_reported(desk: DlimDesk) -> None:
    done = desk.run("model", "list", "--rest-server", "http://127.0.0.1:9", "--jwt-token", TOKEN, "-o", "json")
    assert (done.code, done.error) == (8, "server.unreachable")


def test_a_denied_token_names_the_remedy(desk: DlimDesk, server: ModelServer) -> None:
    done = desk.run("model", "list", "--rest-server", server.address, "--jwt-token", "old-token")
    assert done.code == 9 and "dlim config -t -u USER" in done.err and "old-token" not in done.err


def test_an_answer_without_a_token_is_an_error(desk: DlimDesk, known: ModelServer) -> None:
    known.replies["POST", "/dlim/v1/auth/token/inference"] = failed(200, "x.y", "no")
    assert desk.run("config", "-s").code == 1


def test_trust_is_stored_with_the_server(desk: DlimDesk, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with ModelServer(context) as server:
        server.add("pingpong", started=True)
        assert desk.run("config", "-c", server.address).code == 0
        untrusted = desk.run("config", "-t", "-u", USER, "-x", PASSWORD)
        assert untrusted.code == 8 and not server.seen
        assert desk.run("config", "-c", server.address, "--ca-cert", str(tmp_path / "ca.pem")).code == 0
        assert desk.run("config", "-t", "-u", USER, "-x", PASSWORD).code == 0
        assert "https://" in desk.run("model", "list").out
        desk.pingpong()
        assert f"--cacert {tmp_path / 'ca.pem'}" in desk.run("run", "pingpong").out
