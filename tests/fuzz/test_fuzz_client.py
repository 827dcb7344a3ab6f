"""Any input of a user, in arguments, files or variables, gives at most one error line and never a traceback.

The commands run in this process, by the thousand. tests/client/test_client_argv.py tests the grammar alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from cases import counted, tried
from hypothesis import strategies as st
from in_process import check, run

from dlicmd.contract.exits import Exit
from dlicmd.contract.options import OPTIONS

#: Options of a submission, without those that name a server: they would make this a test of the network.
NAMES = sorted(option.name for option in OPTIONS if option.group.name not in ("CONNECTION",))
COMMANDS = ["--exec-start", "--exec-get", "--exec-get-all", "--exec-stop", "--exec-delete", "--exec-diff",
            "--config-show", "--exec-trainlogs",
            "--app-get", "--rp-get", "--rp-delete", "--k8s-obj-get", "--dl-frameworks", "--version",
            "--exec-deploy", "--hpo-get", "--rp-usage", "--exec-plot", "--exec-why",
            "--exec-start PyTorch --user-cmd", "--exec-start edtPyTorch --model-dir model", "--exec-get w-1",
            "--exec-trainlogs w-1"]
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)
VALUES = TEXTS | st.sampled_from([
    "", "-1", "0", "1000000000", "99999999999999999999", "NaN", "1.5", "１", "8g", "a=b", "=", "[", "{}", "[{}]",
    '[{"type":"fs","location":{"paths":"x"}}]', "type=fs,data_path=x", "json", "model", "model/train.py", "w-1", "last",
    "..", ".", "\x1b]0;x\x07", "\u202e", "a\nb", "x" * 5000,
])
WORDS = st.sampled_from(NAMES) | VALUES | st.tuples(st.sampled_from(NAMES), VALUES).map("=".join) | st.just("--")
#: Other tests cover options that wait, serve or prompt.
LEFT_OUT = ("--follow", "--wait", "--top", "--app-wait", "--demo", "--logon", "--logoff", "--file", "-f", "--to",
            "--rest-host")


@counted("command lines")
def test_any_command_line_runs_or_is_refused(desk: Path, cases: int) -> None:
    @tried(cases, st.sampled_from(COMMANDS), st.lists(WORDS, max_size=6))
    def _case(command: str, words: list[str]) -> None:
        words = [word for word in words if word.partition("=")[0] not in LEFT_OUT]
        own = words[: words.index("--")] if "--" in words else words
        dry = ["--dry-run"] if command.startswith("--exec-start") else []
        check(*command.split(), *own, *dry, *words[len(own):])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "location", "paths", "path", "volume"]) | TEXTS, inner, max_size=3), max_leaves=8)


@counted("data sources")
def test_any_data_source_runs_or_is_refused(desk: Path, cases: int) -> None:
    words = ["--exec-start", "PyTorch", "--user-cmd", "--dry-run"]

    @tried(cases, JSON.map(json.dumps) | TEXTS)
    def _case(text: str) -> None:
        assert check(*words, f"--data-source={text}", "--", "true") in (Exit.DONE, Exit.USAGE)


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
    """Return the commands that read YAML."""
    return [("--exec-start", "-f", str(file), "--dry-run"), ("--rp-apply", str(file)),
            ("--exec-start", "PyTorch", "--user-cmd", "--profile", "p", "--dry-run", "--", "true")]


@counted("YAML files")
def test_any_yaml_runs_or_is_refused(desk: Path, cases: int) -> None:
    file = desk / "x.yaml"
    job, plans, profile = kinds(file)

    @tried(cases, YAML, st.integers(0, 2))
    def _case(text: bytes, which: int) -> None:
        file.write_bytes(text)
        if which == 0:
            check(*job)
        elif which == 1:
            # The stand-in server knows no plans, so valid YAML fails there.
            assert check(*plans) in (Exit.FAILED, Exit.USAGE)
        else:
            with patch.dict(os.environ, DLICMD_CONFIG=str(file)):
                check(*profile)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_yaml_is_refused_in_one_line(desk: Path, text: bytes) -> None:
    file = desk / "hostile.yaml"
    file.write_bytes(text)
    for words in kinds(file)[:2]:
        code, out, err = run(*words)
        assert code in (Exit.USAGE, Exit.FAILED) and out == "" and err.count("\n") == 1, (words, err)
        assert "Traceback" not in err and "for the traceback" not in err and "\x1b" not in err, err
        assert code == Exit.FAILED or "hostile.yaml" in err
    with patch.dict(os.environ, DLICMD_CONFIG=str(file)):
        assert check(*kinds(file)[2]) == Exit.USAGE


def test_deeply_nested_plans_are_refused(desk: Path) -> None:
    (desk / "deep.yaml").write_bytes(b"plans: " + b"[" * 10_000 + b"]" * 10_000)
    assert check("--rp-apply", str(desk / "deep.yaml")) == Exit.USAGE


VARIABLES = ["DLICMD_PROFILE", "DLICMD_CONFIG", "DLICMD_TOKEN", "DLICMD_INSECURE", "DLICMD_CA_CERT", "DLICMD_USERNAME",
             "DLICMD_PASSWORD", "DLI_SLOTS", "COLUMNS", "LINES", "TERM", "NO_COLOR", "LANG", "XDG_CONFIG_HOME", "HOME",
             "HTTP_PROXY", "NO_PROXY", "http_proxy"]


@counted("environments")
def test_any_environment_gives_no_traceback(desk: Path, cases: int) -> None:
    commands = st.sampled_from(["--exec-get-all", "--config-show"])

    @tried(cases, st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=4), commands)
    def _case(values: dict[str, str], command: str) -> None:
        with patch.dict(os.environ, values):
            check(command)
