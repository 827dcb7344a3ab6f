"""The token in a keyring: the real library with a keyring backend that stores a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import TOKEN, FakeServer, Reply

OTHER_TOKEN = "of-the-other-server"

BACKEND = """
import json, os, pathlib
from keyring.backend import KeyringBackend
class Keyring(KeyringBackend):
    priority = 1
    file = pathlib.Path(os.environ["KEYRING_FILE"])
    def _all(self):
        return json.loads(self.file.read_text()) if self.file.exists() else {}
    def get_password(self, service, name):
        return self._all().get(service + "/" + name)
    def set_password(self, service, name, password):
        self.file.write_text(json.dumps(self._all() | {service + "/" + name: password}))
    def delete_password(self, service, name):
        found = self._all()
        del found[service + "/" + name]
        self.file.write_text(json.dumps(found))
"""


@pytest.fixture
def ring(desk: Desk, tmp_path: Path) -> Path:
    """The file behind the keyring of `desk`."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "ring_of_the_test.py").write_text(BACKEND)
    desk.environment |= {"PYTHONPATH": str(modules), "PYTHON_KEYRING_BACKEND": "ring_of_the_test.Keyring",
                         "KEYRING_FILE": str(tmp_path / "ring.json")}
    return tmp_path / "ring.json"


def test_logon_stores_the_token_in_the_keyring_and_logoff_removes_it(
    desk: Desk, fake: FakeServer, remote: list[str], ring: Path
) -> None:
    where = remote[:-2]
    desk.environment["DLICMD_KEYRING"] = "1"
    assert desk.run("--logon", *where, "--username", "ada", "--password", "x").code == 0
    assert set(json.loads(ring.read_text()).values()) == {TOKEN} and not (desk.home / ".dlicmd").exists()
    assert desk.run("--exec-get-all", *where).code == 0
    assert fake.seen[-1].headers["authorization"] == f"Bearer {TOKEN}"
    del desk.environment["DLICMD_KEYRING"]
    assert desk.run("--exec-get-all", *where).code == 0, "the server is known, and where its token is"
    assert desk.run("--logoff", *where, "--keyring").code == 0
    assert json.loads(ring.read_text()) == {} and fake.seen[-1].path == "/auth/v1/logoff"
    (desk.home / ".dlicmd").write_text("of another day")
    assert desk.run("--exec-get-all", *where, "--keyring").code == 9 and (desk.home / ".dlicmd").exists()


def test_an_unusable_keyring_is_reported(desk: Desk, fake: FakeServer, remote: list[str], ring: Path) -> None:
    ring.write_text("no JSON")
    done = desk.run("--exec-get-all", *remote[:-2], "--keyring", "-o", "json")
    assert (done.code, done.error) == (1, "token.file") and "~/.dlicmd" in done.err
    (Path(desk.environment["PYTHONPATH"]) / "keyring.py").write_text("raise ImportError")
    done = desk.run("--exec-get-all", *remote[:-2], "--keyring", "-o", "json")
    assert (done.code, done.error) == (1, "token.file") and "dlicmd[keyring]" in done.err and not fake.seen


@pytest.mark.parametrize("how", [["--keyring"], []])
def test_each_server_of_a_verb_has_its_own_token_in_the_keyring(
    desk: Desk, fake: FakeServer, ring: Path, how: list[str]
) -> None:
    if not how:
        desk.environment["DLICMD_KEYRING"] = "1"
    with FakeServer() as other:
        other.tokens = {OTHER_TOKEN}
        other.replies["GET", "/auth/v1/logon"] = Reply(200, json.dumps({"accessToken": OTHER_TOKEN}).encode())
        for server in (fake, other):
            words = ["login", f"http://127.0.0.1:{server.port}", "--username", "ada", "--password", "x", *how]
            assert desk.run(*words).code == 0
        for server, token in ((fake, TOKEN), (other, OTHER_TOKEN)):
            assert desk.run("server", "use", f"127.0.0.1:{server.port}").code == 0
            assert desk.run("ls").code == 0
            assert server.seen[-1].headers["authorization"] == f"Bearer {token}"
        assert desk.run("logout").code == 0
        assert list(json.loads(ring.read_text()).values()) == [TOKEN]
