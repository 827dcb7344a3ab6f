"""Calls with known security risks are banned from the code, and the idle server does not import torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BANNED_CALLS = {
    "eval", "exec", "compile", "os.system", "os.popen", "pickle.load", "pickle.loads", "pickle.Unpickler",
    "cloudpickle.load", "cloudpickle.loads", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "marshal.load", "marshal.loads", "shelve.open", "tempfile.mktemp", "runpy.run_path", "os.popen2", "os.execl",
    "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput", "yaml.load_all", "dill.loads",
    "joblib.load", "numpy.load", "pandas.read_pickle", "ssl._create_unverified_context", "hashlib.md5", "hashlib.sha1",
    "xml.etree.ElementTree.parse",
}
BANNED_METHODS = {"extractall", "set_debuglevel"}
#: Keyword arguments that are unsafe in every call.
BANNED_WORDS = {("verify", False), ("check_hostname", False), ("allow_pickle", True), ("weights_only", False)}
#: Code in the processes of a job, on data of the job, may do all that the user's program may do.
IN_THE_JOB = (
    "local_backend/elastic/", "local_backend/fabric/", "local_backend/runtime/program.py", "dlicmd/sdk/function_job.py",
    "local_backend/inference/kernel/",
)
#: Allowed calls, each in one file: the client loads the value of its own function after it has checked the HMAC; the
#: process of a plugin loads the state that the same plugin has saved.
ALLOWED = {("dlicmd/sdk/function.py", "pickle.load"), ("local_backend/hypersearch/plugin_host.py", "pickle.loads")}


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def offences(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    origins = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{path}:{node.lineno}: bare except")
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        name = origins.get(name, name)
        if (str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else "", name) in ALLOWED:
            continue
        if name in BANNED_CALLS or name.rpartition(".")[2] in BANNED_METHODS:
            found.append(f"{path}:{node.lineno}: {name}")
        for word in node.keywords:
            if isinstance(word.value, ast.Constant) and (word.arg, word.value.value) in BANNED_WORDS:
                found.append(f"{path}:{node.lineno}: {word.arg}={word.value.value}")
        if any(word.arg == "shell" and not (isinstance(word.value, ast.Constant) and not word.value.value)
               for word in node.keywords):
            found.append(f"{path}:{node.lineno}: shell=")
    return found


def sources() -> list[Path]:
    found = [path for top in ("dlicmd", "local_backend") for path in (ROOT / top).rglob("*.py")]
    return [path for path in found if not str(path.relative_to(ROOT)).startswith(IN_THE_JOB)]


def test_the_code_contains_no_banned_call() -> None:
    assert len(sources()) > 40
    assert [offence for path in sources() for offence in offences(path)] == []


@pytest.mark.parametrize("code", [
    "import pickle\npickle.loads(b'')", "from pickle import loads as f\nf(b'')", "import os\nos.system('x')",
    "import subprocess\nsubprocess.run('x', shell=True)", "eval('1')", "t.extractall()",
    "try:\n  pass\nexcept:\n  pass", "import requests\nrequests.get('x', verify=False)", "import yaml\nyaml.load('x')",
    "import ssl\nssl._create_unverified_context()", "from hashlib import md5\nmd5(b'')",
])
def test_the_check_detects_banned_code(tmp_path: Path, code: str) -> None:
    (tmp_path / "x.py").write_text(code)
    assert offences(tmp_path / "x.py")


def test_the_idle_server_imports_no_heavy_library() -> None:
    program = (
        "import sys, local_backend.serving.server, local_backend.api.app, local_backend.runtime.supervisor\n"
        "print(sorted({'torch', 'numpy', 'cloudpickle', 'alembic', 'requests', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
