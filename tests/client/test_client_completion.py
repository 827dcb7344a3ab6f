"""Shell completion: with a real bash, and the scripts and words for other shells."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

import pytest
from client_desk import Desk
from fake_server import FakeServer, exec_object

pytestmark = pytest.mark.integration

COMPLETE = """
PATH={desk}:$PATH
eval "$(dlicmd --completion bash)"
compopt() {{ echo "compopt $*"; }}
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_dlicmd_completion dlicmd
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(desk: Desk, words: str) -> list[str]:
    """Return the candidates of bash for the last of these words; stderr must be empty."""
    command = desk.folder / "dlicmd"
    if not command.exists():
        command.write_text(f"#!{sys.executable}\nimport sys\nfrom dlicmd.cli import main\nsys.exit(main())\n")
        command.chmod(0o755)
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE.format(desk=desk.folder, words=words)], env=desk.environment, cwd=desk.folder,
        capture_output=True, text=True, timeout=90, check=True,
    )
    assert done.stderr == "", done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_options_ids_and_values(desk: Desk, local: FakeServer) -> None:
    for name in ("w-1", "w-2", "other", "$(touch evil)", "two words", "*"):
        local.execs[name] = exec_object(name)
    assert completed(desk, "dlicmd --exec-st") == ["--exec-start", "--exec-stop"]
    assert completed(desk, "dlicmd --exec-get ''") == ["last", "other", "w-2", "w-1"]
    assert completed(desk, "dlicmd --exec-diff w-1 w-") == ["w-2", "w-1"]
    assert completed(desk, "dlicmd --follow l") == ["last"]
    assert completed(desk, "dlicmd --exec-start ''") == ["PyTorch"]
    assert completed(desk, "dlicmd --exec-start PyTorch --workerDeviceT") == ["--workerDeviceType"]
    assert completed(desk, "dlicmd --exec-start PyTorch --workerDeviceType ''") == ["cpu", "gpu"]
    assert completed(desk, "dlicmd --exec-get-all -o j") == ["json", "jsonl"]
    assert completed(desk, "dlicmd --exec-start PyTorch --model-dir ''")[:2] == ["compopt -o", "dirnames"]
    assert completed(desk, "dlicmd --exec-start PyTorch -- --e")[:2] == ["compopt -o", "default"]
    assert completed(desk, "dlicmd --exec-get-all --model") == [""]
    assert not (desk.folder / "evil").exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_without_a_server(desk: Desk) -> None:
    """The cases: no server is running and none is started; no connection; no answer; a broken configuration."""
    assert completed(desk, "dlicmd --exec-get ''") == ["last"] and not list(desk.state.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"--rest-host 127.0.0.1 --rest-port {silent.getsockname()[1]} --http --jwt-token t"
        assert completed(desk, f"dlicmd {where} --exec-get ''") == ["last"]
    assert completed(desk, f"dlicmd {where} --exec-get ''") == ["last"]
    desk.environment["DLICMD_CONFIG"] = "none.yaml"
    assert completed(desk, "dlicmd --exec-get ''") == ["last"]


def test_completion_scripts_are_printed_for_each_shell(desk: Desk) -> None:
    for shell, part in (("bash", "complete -o nosort -F"), ("zsh", "#compdef dlicmd"), ("fish", "complete --no-files")):
        done = desk.run("--completion", shell)
        assert done.code == 0 and part in done.out and f"_DLICMD_COMPLETE={shell}_complete" in done.out
    assert desk.run("--completion", "tcsh").code == 2 and desk.run("--completion").code == 2


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_get_candidates(desk: Desk, local: FakeServer, shell: str) -> None:
    local.execs["w-1"] = exec_object("w-1")
    cword = "2" if shell == "zsh" else ""
    desk.environment |= {
        "_DLICMD_COMPLETE": f"{shell}_complete", "COMP_WORDS": "dlicmd --exec-get ", "COMP_CWORD": cword}
    done = desk.run()
    assert (done.code, done.err) == (0, "") and "last" in done.out and "w-1" in done.out
    desk.environment["COMP_WORDS"] = "'"
    done = desk.run()
    assert (done.code, done.err) == (0, "")
