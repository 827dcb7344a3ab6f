"""Logons with a real OIDC provider: the device grant with its pages, and the token of a pipeline."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest
import requests
from live_server import Live
from server_process import NotThere, free_port, listens, running
from support import PATIENCE

from dlicmd.contract import wire
from local_backend.settings import OidcSettings

pytestmark = pytest.mark.integration
CLIENT = "dlicmd"
_SCRIPT = Path(__file__).with_name("oidc_provider.mjs")


def library() -> Path:
    """Return the main file of the provider. Raises NotThere."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotThere("node and npm are not on PATH")
    root = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=True).stdout.strip()
    found = Path(root) / "oidc-provider" / "lib" / "index.js"
    if not found.exists():
        raise NotThere("npm install -g oidc-provider (see docs/dependencies.md)")
    return found


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    try:
        with running(["node", _SCRIPT, library(), str(port), CLIENT], lambda: listens(port),
                     tmp_path_factory.mktemp("provider")):
            yield f"http://127.0.0.1:{port}"
    except NotThere as problem:
        pytest.skip(str(problem))


@pytest.fixture
def team(start: Callable[..., Live], issuer: str) -> Live:
    return start(embedded=False, oidc=OidcSettings(
        issuer=issuer, client_id=CLIENT, create_users=True, admin_claim="groups", admin_values=("gpu-admins",)))


class Dlicmd:
    """dlicmd as a process of a user with a home of their own."""

    def __init__(self, home: Path, live: Live) -> None:
        self._words = [sys.executable, "-m", "dlicmd.cli"]
        self._address = f"http://127.0.0.1:{live.port}"
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "DLICMD_HOME": str(home / "state")}

    def login(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._words, "login", self._address, *more, "-o", "json"], env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def whoami(self) -> dict[str, str]:
        said = subprocess.run([*self._words, "whoami", "-o", "json"], env=self.environment, check=True,
                              capture_output=True, text=True, timeout=PATIENCE).stdout
        found = json.loads(said)
        assert isinstance(found, dict)
        return found


def confirm(page: str, name: str, agree: bool = True) -> None:
    """Do what a user does in a browser: confirm the code, log on at the provider, and agree."""
    with requests.Session() as browser:
        answer = browser.get(page, timeout=PATIENCE)
        for _ in range(8):
            # The page with the code sends its first form by a script.
            form = re.search(r"<form[^>]*action=\"([^\"]+)\".*?</form>", answer.text, re.DOTALL)
            if form is None:
                return
            fields = dict(re.findall(r"<input[^>]*name=\"([^\"]+)\"[^>]*value=\"([^\"]*)\"", form[0]))
            if "name=\"login\"" in form[0]:
                fields |= {"login": name, "password": "any"}
            if "user_code" in form[0] and "confirm" not in fields:
                fields |= {"confirm": "yes"} if agree else {"abort": "yes"}
            answer = browser.post(urljoin(answer.url, html.unescape(form[1])), fields, timeout=PATIENCE)
            if "abort" in fields:
                return
    raise AssertionError(answer.text)


def page_of(process: subprocess.Popen[str]) -> str:
    """Return the address with the code that dlicmd shows."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http\S+user_code=\S+", line):
            return found[0]
    raise AssertionError("dlicmd showed no address")


@pytest.mark.parametrize(("name", "role"), [("ada", "Admin"), ("bob", "User")])
def test_a_user_confirms_a_logon_in_a_browser(team: Live, tmp_path: Path, name: str, role: str) -> None:
    user = Dlicmd(tmp_path, team)
    with user.login("--oidc") as process:
        confirm(page_of(process), name)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(out)["user"] == name and json.loads(out)["role"] == role
    assert user.whoami()["user"] == name


def test_a_user_refuses_a_logon_in_a_browser(team: Live, tmp_path: Path) -> None:
    with Dlicmd(tmp_path, team).login("--oidc") as process:
        confirm(page_of(process), "eve", agree=False)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 9 and "access_denied" in err


def id_token(issuer: str, name: str) -> str:
    """Return an ID token of the provider, as a pipeline has one."""
    device = requests.post(f"{issuer}/device/auth", {"client_id": CLIENT, "scope": "openid profile"},
                           timeout=PATIENCE).json()
    confirm(device["verification_uri_complete"], name)
    found = requests.post(f"{issuer}/token", {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code", "client_id": CLIENT,
        "device_code": device["device_code"]}, timeout=PATIENCE).json()
    return str(found["id_token"])


@pytest.mark.parametrize("way", ["file", "variable"])
def test_a_pipeline_logs_on_with_its_token(team: Live, issuer: str, tmp_path: Path, way: str) -> None:
    user, token = Dlicmd(tmp_path, team), id_token(issuer, "bob")
    more = []
    if way == "file":
        (tmp_path / "token").write_text(token + "\n")
        more = ["--oidc-token-file", str(tmp_path / "token")]
    else:
        user.environment["DLICMD_OIDC_TOKEN"] = token
    with user.login(*more) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(out)["user"] == "bob" and token not in out + err
    assert user.whoami()["user"] == "bob"
    forged = token[:-8] + "AAAAAAAA"
    answer = team.call("POST", wire.OIDC, json.dumps({"token": forged}).encode(), {"Content-Type": "application/json"},
                       token=None, base="")
    assert answer.error == (401, "oidc.token")
