"""`local-backend token` with a running server and without a server, and its tokens in `dlicmd`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from live_server import TOKEN, Live, settings_for
from support import PATIENCE

from dlicmd.contract.exits import Exit
from local_backend.cli import main
from local_backend.files import write_json
from local_backend.serving import server


class Desk:
    """A user of the command line on the machine of the server."""

    def __init__(self, home: Path, live: Live | None) -> None:
        self.home = home
        self.live = live

    def token(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["token", *words], env={"DLICMD_HOME": str(self.home)})

    def listed(self, *words: str) -> list[dict[str, str]]:
        found = json.loads(self.token("list", "-o", "json", *words).stdout)
        assert isinstance(found, list)
        return found


@pytest.fixture(params=["running", "stopped"])
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    home = tmp_path / "home"
    if request.param == "stopped":
        yield Desk(home, None)
        return
    live = Live(settings_for(home, embedded=False))
    with server.locked(live.settings):
        found = {"url": f"http://127.0.0.1:{live.port}", "pid": os.getpid(), "token": TOKEN}
        write_json(home / "backend.json", found)
        yield Desk(home, live)
    live.close()


def test_a_token_is_made_listed_and_revoked(desk: Desk) -> None:
    made = desk.token("create", "--name", "ci", "--scope", "submit", "--expires", "12h")
    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    assert token.startswith("dlit_") and len(token) > 40 and token not in made.stderr and "ci" in made.stderr
    (found,) = desk.listed()
    assert (found["name"], found["scope"]) == ("ci", "submit") and found["created"] < found["expires"]
    shown = desk.token("list").stdout
    assert found["id"] in shown and token not in shown
    assert desk.token("create", "--name", "ci", "--scope", "read").exit_code == Exit.FAILED
    if desk.live is not None:
        assert desk.live.call("GET", "/conf", token=token).status == 200
    assert desk.token("revoke", "ci").exit_code == 0 and desk.listed() == []
    assert desk.token("revoke", "ci").exit_code == Exit.NO_SUCH_ID
    if desk.live is not None:
        assert desk.live.call("GET", "/conf", token=token).status == 401


@pytest.mark.parametrize("words", [
    ["--name", "x"], ["--scope", "read"], ["--name", "x", "--scope", "all"],
    *(["--name", "x", "--scope", "read", "--expires", time] for time in ("30", "d", "-1d", "1.5h", "1w", "")),
])
def test_a_wrong_command_line_is_refused(tmp_path: Path, words: list[str]) -> None:
    assert Desk(tmp_path / "home", None).token("create", *words).exit_code == Exit.USAGE


def test_a_token_for_an_unknown_user_is_refused(desk: Desk) -> None:
    refused = desk.token("create", "--name", "x", "--scope", "read", "--user", "nobody")
    assert refused.exit_code == Exit.NO_SUCH_ID and desk.listed() == []


@pytest.mark.parametrize("way", ["option", "variable"])
def test_dlicmd_uses_a_token(tmp_path: Path, way: str) -> None:
    live = Live(settings_for(tmp_path / "home", embedded=False))
    try:
        live.add_user("bob")
        bob = live.services.tokens.create(live.services.logons.of_token(TOKEN), "ci", "read", 3600, "bob")[1]
        address = ["--rest-host", "127.0.0.1", "--rest-port", str(live.port), "--http"]
        environment = {**os.environ, "HOME": str(tmp_path), "DLICMD_HOME": str(tmp_path / "client")}
        more = ["--jwt-token", bob] if way == "option" else []
        if way == "variable":
            environment["DLICMD_TOKEN"] = bob

        def dlicmd(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([sys.executable, "-m", "dlicmd.cli", *words, *address, *more], env=environment,
                                  capture_output=True, text=True, timeout=PATIENCE, check=False)

        said = dlicmd("whoami", "-o", "json")
        assert json.loads(said.stdout)["user"] == "bob", said
        exec_id = live.submitted(token=live.services.tokens.create(
            live.services.logons.of_token(TOKEN), "other", "submit", 3600, "bob")[1])
        assert json.loads(dlicmd("get", exec_id, "-o", "json").stdout)["creator"] == "bob"
        refused = dlicmd("stop", exec_id, "-o", "json")
        assert refused.returncode != 0 and "auth.scope" in refused.stderr + refused.stdout
        assert not live.row(exec_id).stop_requested
    finally:
        live.close()
