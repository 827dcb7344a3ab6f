"""docs/team-server.md: its shell blocks run in order and have the effects that the page states."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import free_port
from user import DEADLINE, User

from dlicmd import __version__

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "team-server.md"
TOOLS = ("bash", "awk", "curl", "openssl")


class Shell:
    """Runs the blocks of the page, each in a shell that knows the variables of the previous blocks."""

    def __init__(self, folder: Path, blocks: list[str]) -> None:
        self.folder = folder
        self.blocks = blocks
        tools = folder / "bin"
        tools.mkdir()
        for name, program in (("dlicmd", "dlicmd.cli"), ("local-backend", "local_backend.cli")):
            (tools / name).write_text(
                f"#!{sys.executable}\nimport sys\nfrom {program} import main\nsys.exit(main())\n")
            (tools / name).chmod(0o700)
        # Use this Python: another may be too old for the libraries.
        (tools / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tools / "python3").chmod(0o700)
        self.environment = User(folder / "home").environment | {
            "PATH": f"{tools}:{os.environ['PATH']}", "BASH_ENV": "", "USER": "", "LOGNAME": "",
        }
        self.variables = ""

    def run(self, block: str) -> str:
        """Run a block and return its output. Fails if one of its commands fails."""
        kept = self.folder / "variables"
        script = f"set -eo pipefail\n{self.variables}\n{block}\nexport -p > {kept}\n"
        with (self.folder / "output").open("w+") as output:
            done = subprocess.run(
                ["bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, timeout=DEADLINE, check=False,
            )
            output.seek(0)
            said = output.read()
        assert done.returncode == 0, f"{block}\n{said}"
        self.variables = kept.read_text()
        return said


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}, which the page uses")
    text = PAGE.read_text(encoding="utf-8")
    for before, after in (("/srv/dlicmd", str(tmp_path / "srv")), ("9243", str(free_port())),
                          ("gpu.example", "localhost")):
        assert before in text
        text = text.replace(before, after)
    found = Shell(tmp_path, re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    yield found
    found.run(f"DLICMD_HOME={tmp_path / 'srv'} local-backend stop --jobs")


def test_the_commands_of_the_page_have_the_stated_effects(shell: Shell) -> None:
    setup, fetch, handed, work, http, users, keys, tokens, own_token, audit = shell.blocks
    started = shell.run(setup)
    assert "added ada (admin)" in started and "added bob (user)" in started
    fingerprint = re.search(r"fingerprint of that file is ([0-9A-F:]{95})", started)
    assert fingerprint and fingerprint[1] in shell.run(fetch)
    shell.variables += "\nexport DLICMD_HOME=$PWD/client\n"
    assert shell.run(handed) == f"dlicmd {__version__}\n"
    said = shell.run(work)
    assert '"username": "bob"' in said and "\nhello\n" in said and "FINISHED" in said
    assert not (shell.folder / "client").exists(), "the client must not start its own backend"
    made = shell.run(f"export DLICMD_HOME={shell.folder / 'srv'}\n{tokens}")
    assert re.search(r"^dlit_\S{43}$", made, re.MULTILINE) and "revoked nightly" in made
    assert json.loads(shell.run(own_token))["scope"] == "submit"
    answers = shell.run(http)
    assert '"creator":"bob"' in answers and '"jobs":{"FINISHED":1}' in answers
    shell.variables += f"\nexport DLICMD_HOME={shell.folder / 'srv'}\n"
    listed = shell.run(users)
    assert re.search(r"^ada +admin ", listed, re.MULTILINE) and "removed bob" in listed
    keep = list((shell.folder / "srv" / "keys").iterdir())
    shell.run(keys)
    assert len(keep) == 1 and not (shell.folder / "srv" / "keys").exists()
    lines = [json.loads(line) for line in shell.run(audit).splitlines()]
    assert {line["user"] for line in lines} == {"bob"}
    assert [line["about"] for line in lines if line["action"] == "exec.submit"] == [["local-1"]]
    secrets = [(shell.folder / f"{name}.password").read_text().strip() for name in ("ada", "bob")]
    left = b"".join(path.read_bytes() for path in (shell.folder / "srv").rglob("*") if path.is_file())
    assert not [secret for secret in secrets if secret.encode() in left]
