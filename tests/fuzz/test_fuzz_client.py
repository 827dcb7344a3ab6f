"""Whatever a user types, or has in a file or a variable: one line that says what is wrong, and never a traceback.

In this process, for thousands of commands; the grammar alone has its tests in tests/client/test_client_argv.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))

from fake_server import TOKEN, FakeServer, exec_object

from dlicmd import cli
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import OPTIONS

#: Options of a submission; those that name a server would make this a test of the network.
NAMES = sorted(option.name for option in OPTIONS if option.group.name not in ("CONNECTION",))
COMMANDS = ["--exec-start", "--exec-get", "--exec-get-all", "--exec-stop", "--exec-delete", "--exec-diff",
            "--config-show", "--exec-trainlogs",
            "--app-get", "--rp-get", "--rp-delete", "--k8s-obj-get", "--dl-frameworks", "--version",
            "--exec-deploy", "--hpo-get", "--rp-usage", "--exec-plot", "--exec-why"]
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
VALUES = TEXTS | st.sampled_from([
    "", "-1", "0", "1000000000", "99999999999999999999", "NaN", "1.5", "１", "8g", "a=b", "=", "[", "{}", "[{}]",
    '[{"type":"fs","location":{"paths":"x"}}]', "type=fs,data_path=x", "json", "model", "model/train.py", "w-1", "last",
    "..", ".", "\x1b]0;x\x07", "\u202e", "a\nb", "x" * 5000,
])
WORDS = st.sampled_from(NAMES) | VALUES | st.tuples(st.sampled_from(NAMES), VALUES).map("=".join) | st.just("--")
#: What waits, serves or asks at a terminal has tests of its own.
LEFT_OUT = ("--follow", "--wait", "--top", "--app-wait", "--demo", "--logon", "--logoff", "--file", "-f", "--to",
            "--rest-host")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model to work in, and a local backend to talk to."""
    root = tmp_path_factory.mktemp("client")
    folder = root / "in" / "desk"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "train.py").write_text("print(1)\n")
    (root / "state").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DLI", "XDG_"))}
    with FakeServer("argv,follow,local-paths") as server:
        server.execs["w-1"] = exec_object("w-1", state="FINISHED")
        (root / "state" / "backend.json").write_text(
            json.dumps({"url": server.url, "pid": os.getpid(), "token": TOKEN}))
        ours = kept | {"HOME": str(folder), "DLICMD_HOME": str(root / "state"), "COLUMNS": "100"}
        before = Path.cwd()
        os.chdir(folder)
        with patch.dict(os.environ, ours, clear=True):
            yield folder
        os.chdir(before)


def run(*words: str) -> tuple[int, str, str]:
    """Run dlicmd in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch("sys.stdin", io.StringIO()):
        code = cli.main(list(words))
    return code, out.getvalue(), err.getvalue()


def check(*words: str) -> int:
    """Run it, and look at how it says what is wrong."""
    code, out, err = run(*words)
    assert code in set(Exit), (words, code)
    assert "Traceback" not in err + out and "for the traceback" not in err, (words, err)
    assert "\x1b" not in err and "\u202e" not in err, (words, err)
    if code == Exit.USAGE:
        # Slips that are told come before; the line that says what is wrong is the last.
        assert err.endswith("Try 'dlicmd --help'.\n") and len(err.splitlines()[-1]) < 6000, (words, err)
        assert err.count("Try 'dlicmd --help'") == 1, (words, err)
    return code


@settings(max_examples=400)
@given(st.sampled_from(COMMANDS), st.lists(WORDS, max_size=6))
def test_any_command_line(desk: Path, command: str, words: list[str]) -> None:
    words = [word for word in words if word.partition("=")[0] not in LEFT_OUT]
    own = words[: words.index("--")] if "--" in words else words
    check(command, *own, *(["--dry-run"] if command == "--exec-start" else []), *words[len(own):])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "location", "paths", "path", "volume"]) | TEXTS, inner, max_size=3), max_leaves=8)


@settings(max_examples=150)
@given(JSON.map(json.dumps) | TEXTS)
def test_any_data_source(desk: Path, text: str) -> None:
    assert check("--exec-start", "PyTorch", "--user-cmd", f"--data-source={text}", "--dry-run", "--", "true") in (0, 2)


OTHER_KEYS = ["framework", "args", "plans", "name", "profiles", "default"]
KEYS = st.sampled_from([name.lstrip("-") for name in NAMES] + OTHER_KEYS)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.binary(max_size=4) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=4), max_leaves=10)
YAML = (DOCUMENTS.map(lambda found: yaml.safe_dump(found, allow_unicode=True).encode())
        | st.dictionaries(KEYS, DOCUMENTS, min_size=1, max_size=4).map(lambda found: yaml.safe_dump(found).encode())
        | st.binary(max_size=60))
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
HOSTILE = [
    BOMB.encode(), b"- " * 10_000, b"{a: " * 10_000, b"\xff\xfe",
    b"&a [*a]", b"? [a]\n: b", b"!!python/object/apply:os.system [id]", b"a: !!binary zzz", b"%YAML 9.9\n---\na", b"\0",
    b"a: 1\n---\nb: 1\n", b"<<: [1]\n", b"plans: 2001-02-30", b"plans: .nan", b"plans: 0x_", b"plans: !!set {a}",
    b"plans: 1" + b"0" * 5000, b"\x1b]0;x\x07: 1", b'"\\ud800": "\\ud800"',
]


def kinds(file: Path) -> list[tuple[str, ...]]:
    """The commands that read YAML."""
    return [("--exec-start", "-f", str(file), "--dry-run"), ("--rp-apply", str(file)),
            ("--exec-start", "PyTorch", "--user-cmd", "--profile", "p", "--dry-run", "--", "true")]


@settings(max_examples=120)
@given(YAML)
def test_any_yaml(desk: Path, text: bytes) -> None:
    file = desk / "x.yaml"
    file.write_bytes(text)
    with patch.dict(os.environ, DLICMD_CONFIG=str(file)):
        for words in kinds(file)[:1] + kinds(file)[2:]:
            check(*words)
    # The server that stands in knows no plans: what is YAML ends there.
    assert check("--rp-apply", str(file)) in (Exit.FAILED, Exit.USAGE)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_yaml(desk: Path, text: bytes) -> None:
    file = desk / "hostile.yaml"
    file.write_bytes(text)
    for words in kinds(file)[:2]:
        code, out, err = run(*words)
        assert code in (Exit.USAGE, Exit.FAILED) and out == "" and err.count("\n") == 1, (words, err)
        assert "Traceback" not in err and "for the traceback" not in err and "\x1b" not in err, err
        assert code == Exit.FAILED or "hostile.yaml" in err
    with patch.dict(os.environ, DLICMD_CONFIG=str(file)):
        assert check(*kinds(file)[2]) == Exit.USAGE


def test_plans_nested_too_deeply(desk: Path) -> None:
    (desk / "deep.yaml").write_bytes(b"plans: " + b"[" * 10_000 + b"]" * 10_000)
    assert check("--rp-apply", str(desk / "deep.yaml")) == Exit.USAGE


VARIABLES = ["DLICMD_PROFILE", "DLICMD_CONFIG", "DLICMD_TOKEN", "DLICMD_INSECURE", "DLICMD_CA_CERT", "DLICMD_USERNAME",
             "DLICMD_PASSWORD", "DLI_SLOTS", "COLUMNS", "LINES", "TERM", "NO_COLOR", "LANG", "XDG_CONFIG_HOME", "HOME",
             "HTTP_PROXY", "NO_PROXY", "http_proxy"]


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=4),
       st.sampled_from(["--exec-get-all", "--config-show"]))
def test_any_environment(desk: Path, values: dict[str, str], command: str) -> None:
    with patch.dict(os.environ, values):
        check(command)
