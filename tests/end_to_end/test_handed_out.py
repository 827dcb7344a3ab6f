"""`wget https://HOST/ui/tools/dlicmd.py`: the file works on a machine that has only Python."""

from __future__ import annotations

import ast
import json
import os
import ssl
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest
from user import DEADLINE, Done, User

from dlicmd import __version__
from local_backend.handout import client_file

pytestmark = pytest.mark.integration

TRAIN = "import os\nprint('far away')\nopen(os.environ['RESULT_DIR'] + '/model/weights', 'w').write('0.5')\n"
#: Only the schema detects this error.
#: Libraries that the client uses if they are installed.
OPTIONAL = {"cloudpickle", "jsonschema", "keyring", "pandas", "pyarrow"}
WRONG = '[{"type": "fs", "access": "download"}]'


class Agent:
    """A machine with a Python without libraries, an empty HOME, and the file from the server."""

    def __init__(self, folder: Path, file: bytes) -> None:
        self.folder = folder / "agent"
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
        self.environment = {
            "HOME": str(self.folder), "PATH": f"{folder / 'bare' / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120",
            "DLICMD_PASSWORD": "correct horse",
        }
        (self.folder / "dlicmd.py").write_bytes(file)

    def run(self, *words: str, command: tuple[str, ...] = ("python3", "dlicmd.py")) -> Done:
        """Run the file."""
        done = subprocess.run(
            [*command, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=DEADLINE, check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)


def fetched(far: list[str]) -> bytes:
    """Return the file that the server gives to every client."""
    trust = ssl.create_default_context(cafile=far[5])
    with urllib.request.urlopen(f"https://127.0.0.1:{far[3]}/ui/tools/dlicmd.py", context=trust) as answer:
        found: bytes = answer.read()
    return found


def test_the_file_is_a_complete_client_for_a_remote_server(
    remote: tuple[User, User, list[str]], tmp_path: Path
) -> None:
    far = remote[2]
    agent = Agent(tmp_path, fetched(far))
    insecure = [*far[:4], "--insecure"]
    assert agent.run("--version").out == f"dlicmd {__version__}\n"
    (agent.folder / "dlicmd.py").chmod(0o755)
    shown = agent.run("--help", command=("./dlicmd.py",))
    assert shown.code == 0 and "--exec-get-all" in shown.out and shown.err == ""

    name = os.environ.get("USER") or os.environ.get("LOGNAME") or "root"
    logon = agent.run("--logon", *far, "--username", name)
    assert logon.code == 0 and (agent.folder / ".dlicmd").exists(), logon
    (agent.folder / "m").mkdir()
    (agent.folder / "m" / "train.py").write_text(TRAIN)
    words = ("PyTorch", "--model-dir", "m", "--model-main", "train.py", "--wait", "-o", "json")
    ended = agent.run("--exec-start", *words, *far)
    assert ended.code == 0 and ended.json["state"] == "FINISHED", ended
    exec_id = ended.json["id"]

    table = agent.run("--exec-get-all", *insecure, command=("./dlicmd.py",))
    assert table.code == 0 and exec_id in table.out and "FINISHED" in table.out, table
    assert [one["id"] for one in json.loads(agent.run("--exec-get-all", "-o", "json", *far).out)] == [exec_id]
    assert agent.run("--exec-get", exec_id, "-o", "yaml", *far).out.count("FINISHED") == 1
    assert agent.run("--exec-trainoutlogs", exec_id, *far).out == "far away\n"
    assert agent.run("--exec-trainresult", exec_id, *far).code == 0
    [result] = agent.folder.glob("dlpd-model*.zip")
    assert zipfile.ZipFile(result).read("model/weights") == b"0.5"

    absent = agent.run("--exec-get", "nothing", *far)
    assert (absent.code, absent.err) == (1, "") and "nothing" in absent.out, "as the original client"
    refused = agent.run("--data-preview", WRONG, *far)
    assert refused.code != 0 and "'access' must be mount" in refused.err, "the server must check the schema"


def test_the_file_contains_all_modules_that_the_client_imports(tmp_path: Path) -> None:
    """Late imports count, too. Some libraries are optional."""
    agent = Agent(tmp_path, client_file().content)
    file = zipfile.ZipFile(agent.folder / "dlicmd.py")
    sources = [name for name in file.namelist() if name.startswith("dlicmd/")]
    found = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in sources}
    for node in (node for name in sources for node in ast.walk(ast.parse(file.read(name)))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    modules = sorted(name for name in found
                     if name.partition(".")[0] not in {*sys.stdlib_module_names, *OPTIONAL})
    assert {"dlicmd.cli.show.top_live", "rich.progress", "yaml"} <= set(modules)
    program = "import importlib, sys; sys.path.insert(0, 'dlicmd.py'); [*map(importlib.import_module, sys.argv[1:])]"
    done = agent.run(*modules, command=("python3", "-c", program))
    assert done.code == 0, done.err


def test_commands_for_the_local_backend_report_that_it_is_missing(tmp_path: Path) -> None:
    agent = Agent(tmp_path, client_file().content)
    before = set(agent.folder.rglob("*"))
    listed = agent.run("--exec-get-all")
    assert (listed.code, listed.err) == (1, "")
    assert listed.out == ("[Error]: name a server with --rest-host HOST: this dlicmd is only a client for remote "
                          "servers; pip install dlicmd installs the local backend\n")
    demo = agent.run("--demo")
    assert demo.code == 1 and "only a client for remote servers" in demo.err and len(demo.err.splitlines()) == 1
    assert set(agent.folder.rglob("*")) == before
