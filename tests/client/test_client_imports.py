"""The modules that the client imports at its start, and the exports of the package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object

import dlicmd
from dlicmd.sdk import errors
from dlicmd.sdk.objects import RECORDS

PAGE = Path(__file__).parent.parent.parent / "docs" / "client.md"
FORBIDDEN = {
    "torch", "numpy", "fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "psutil", "local_backend", "requests",
    "urllib3", "rich", "yaml", "platformdirs", "pathspec", "click", "dataclasses", "inspect", "logging", "subprocess",
    "argparse", "tempfile", "asyncio",
}
#: Modules of dlicmd that only some commands need.
HEAVY = {f"dlicmd.sdk.{name}" for name in ("submit", "submission", "package", "follow", "results", "tls")} | {
    "dlicmd.cli.commands.help", "dlicmd.cli.commands.submissions", "dlicmd.cli.commands.watch"}
PROBE = """
import sys
if {windows}:
    for name in ("fcntl", "pwd", "grp", "resource", "termios"):
        sys.modules[name] = None
before = set(sys.modules)
from dlicmd.cli import main
code = main()
print("\\n".join(sorted(set(sys.modules) - before)), file=sys.stderr)
sys.exit(code)
"""


def modules(desk: Desk, *words: str, windows: bool = False, empty: bool = False) -> set[str]:
    """Return the modules that a command imports; with `empty` its output may be empty JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(windows=windows), *words], env=desk.environment, cwd=desk.folder,
        capture_output=True, text=True, timeout=90, check=True,
    )
    assert json.loads(done.stdout) or empty
    return set(done.stderr.split())


def test_a_plain_command_imports_few_modules(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    found = modules(desk, "--exec-get", "w-1", "-o", "json")
    assert "dlicmd.sdk.transport" in found
    assert not {name.split(".")[0] for name in found} & FORBIDDEN
    assert not found & {*HEAVY, "shutil"}


def test_verbs_import_little_more_than_their_long_options(desk: Desk, local: FakeServer) -> None:
    local.execs["local-1"] = exec_object("local-1")
    more = modules(desk, "get", "local-1", "-o", "json") - modules(desk, "--exec-get", "local-1", "-o", "json")
    assert {name for name in more if name.startswith("dlicmd")} <= {f"dlicmd.{name}" for name in (
        "contract.verbs", "contract.verb_argv", "cli.config.servers", "cli.commands.newest", "sdk.newest")}
    for found in (more, modules(desk, "ls", "-o", "json")):
        assert not {name.split(".")[0] for name in found} & FORBIDDEN and not found & HEAVY


def test_last_plot_diff_and_search_commands_import_few_modules(desk: Desk, local: FakeServer) -> None:
    local.execs.update({name: exec_object(name) for name in ("w-1", "w-2")})
    local.logs["w-1"] = "batches :1 0.5\n"
    for words in (["--exec-get", "last"], ["--exec-plot", "w-1"], ["--exec-diff", "w-1", "last"]):
        found = modules(desk, *words, "-o", "json", empty=True)
        assert not {name.split(".")[0] for name in found} & FORBIDDEN
        assert not found & HEAVY
    local.replies["GET", f"{BASE}/hypersearch"] = Reply(200, b"[]")
    searched = modules(desk, "--hpo-get-all", "-o", "json", empty=True)
    assert not {name.split(".")[0] for name in searched} & FORBIDDEN and "dlicmd.sdk.package" not in searched
    assert "dlicmd.cli.commands.newest" not in modules(desk, "--exec-get", "w-1")
    assert "dlicmd.cli.commands.diff" in found


@pytest.mark.parametrize(
    "words", [["--app-get-all"], ["--app-history-get-all"], ["--app-get", "a-1"], ["--app-analyze"], ["--rp-get-all"],
              ["--pj-get-all"], ["--k8s-obj-get", "pod", "p-1"], ["--top"], ["--rp-usage"]], ids=lambda words: words[0])
def test_scheduler_commands_import_few_modules(desk: Desk, local: FakeServer, words: list[str]) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",slot-view,holdings"
    engine = "/scheduler/engine/applications"
    answers = {engine: "[]", f"{engine}/a-1": '[{"id": "a-1"}]', "/resplans/resplantree": '{"id": "cpd"}',
               "/scheduler/slots": '{"slots": []}', "/scheduler/holdings": '{"rows": []}'}
    local.replies |= {("GET", BASE + path): Reply(200, text.encode()) for path, text in answers.items()}
    found = modules(desk, *words, "-o", "json", empty=True)
    assert not {name.split(".")[0] for name in found} & FORBIDDEN
    assert not found & (HEAVY | {"dlicmd.cli.show.top_live"})


def test_a_remote_command_needs_no_unix_modules(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    modules(desk, "--exec-get", "w-1", *remote, windows=True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has VmHWM")
def test_a_command_uses_at_most_45_mib_of_memory(desk: Desk, local: FakeServer) -> None:
    local.execs["w-1"] = exec_object("w-1")
    probe = "from dlicmd.cli import main; main(); print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", probe, "--exec-get", "w-1", "-o", "json"], env=desk.environment, capture_output=True,
        text=True, timeout=90, check=True,
    )
    assert int(done.stdout.split()[-1]) <= 45 * 2**10


@pytest.mark.parametrize("name", dlicmd.__all__)
def test_every_exported_name_exists_and_is_documented(name: str) -> None:
    found = getattr(dlicmd, name)
    assert getattr(found, "__name__", "__version__") == name
    assert name in ("__version__", "SubmitOptions") or found.__doc__
    assert name == "__version__" or re.search(rf"\b{name}\b", PAGE.read_text(encoding="utf-8"))


def test_only_documented_names_are_exported() -> None:
    assert set(dir(dlicmd)) == set(dlicmd.__all__) and len(set(dlicmd.__all__)) == len(dlicmd.__all__)
    assert {kind.__name__ for kind in RECORDS} | {"Record"} <= set(dlicmd.__all__)
    classes = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert classes <= set(dlicmd.__all__)
    assert not hasattr(dlicmd, "nonsense") and not hasattr(dlicmd, "quote")


def test_importing_the_package_imports_no_other_modules() -> None:
    probe = "import sys; before = set(sys.modules); import dlicmd; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=90)
    assert [name for name in done.stdout.split() if name.startswith("dlicmd")] == ["dlicmd"]


def test_the_sdk_lists_and_reads_execs(fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    with dlicmd.Client("127.0.0.1", fake.port, http=True, token="fake-token-1") as client:
        assert [run["id"] for run in client.execs()] == ["w-1"]
        assert client.exec("w-1")["state"] == "RUNNING"
        assert client.extensions() == frozenset()
        with pytest.raises(dlicmd.NoSuchExec) as problem:
            client.exec("w-2")
    assert (problem.value.status, problem.value.code) == (400, "exec.not_found")
