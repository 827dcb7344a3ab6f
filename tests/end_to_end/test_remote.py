"""The same commands against a backend on another port with TLS, after a logon with a password."""

from __future__ import annotations

import os
import re
import stat

import pytest
from user import User

pytestmark = pytest.mark.integration


def test_commands_work_with_a_remote_backend_over_tls(remote: tuple[User, User, list[str]]) -> None:
    _, client, far = remote
    assert client.run("--exec-get-all", *far).code == 9, "without a token, access must be denied"
    unverified = client.run("--exec-get-all", *far[:4], "--jwt-token", "t")
    assert unverified.code == 8 and "--ca-cert" in unverified.err
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or "root"
    client.environment["DLICMD_PASSWORD"] = "wrong"
    assert client.run("--logon", *far, "--username", name).code == 9
    client.environment["DLICMD_PASSWORD"] = "correct horse"
    logon = client.run("--logon", *far, "--username", name)
    assert logon.code == 0, logon
    token_file = client.folder / ".dlicmd"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert token_file.read_text() not in logon.out + logon.err
    assert client.run("--exec-get-all", *far[:4]).code == 0, "the authority of the logon is stored with the server"
    assert client.run("--exec-get-all", *far[:4], "--insecure").code == 0

    folder = client.model("m", train="import os\nprint('far away')\nopen(os.environ['RESULT_DIR'] + '/model/x', 'w')\n")
    words = ("PyTorch", "--model-dir", str(folder), "--model-main", "train.py", "--follow")
    done = client.run("--exec-start", *words, *far)
    assert done.code == 0 and "far away" in done.out, done
    exec_id = re.search(r'"execId": "([^"]+)"', done.out)[1]
    shown = client.run("--exec-get", exec_id, *far)
    assert shown.json["state"] == "FINISHED"
    assert client.run("--exec-trainoutlogs", exec_id, *far).out == "far away\n"
    assert client.run("--exec-trainresult", exec_id, *far).code == 0
    assert client.run("--exec-get", "local-99", *far).code == 6
    assert client.run("--exec-delete", exec_id, *far).code == 0
    assert not client.home.exists(), "no local backend may be started"

    assert client.run("--logoff", *far).code == 0
    assert not token_file.exists()
    assert client.run("--exec-get-all", *far).code == 9
