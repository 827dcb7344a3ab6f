"""Completion in real zsh and fish shells: the candidates, and the line after a TAB.

test_client_completion.py tests bash, and the candidates for each position.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import FakeServer, exec_object
from support import PATIENCE, eventually

from dlicmd.cli.commands.completion import candidates

pytestmark = pytest.mark.integration

#: Every option that may come first.
ALL = sorted(item.value for item in candidates([], "--"))
#: The shell writes each answer to a file and renames it. Calls of compadd with -O, -A or -D
#: only sort matches, so their matches do not count.
ZSH = """
autoload -U compinit && compinit -u -d {folder}/dump
eval "$(dlicmd --completion zsh)"
typeset -a offered
compadd() {{
    if [[ " ${{(j: :)@[1,(i)(-|--)]}} " != *" -"[OAD]" "* ]]; then
        local -a found
        builtin compadd -A found "$@"
        offered+=("${{found[@]}}")
    fi
    builtin compadd "$@"
}}
told() {{ print -rl -- "$@" > {folder}/told.new && mv {folder}/told.new {folder}/told }}
_offered() {{ offered=(); _main_complete; told "${{offered[@]}}" }}
_line() {{ told "$BUFFER" }}
zle -C offered list-choices _offered
zle -N line _line
bindkey '^Xo' offered
bindkey '^Xl' line
setopt no_beep
LISTMAX=10000
told ready
"""


def with_command(desk: Desk) -> Desk:
    """Put `dlicmd` on the PATH of `desk` and return `desk`."""
    command = desk.folder / "dlicmd"
    command.write_text(f"#!{sys.executable}\nimport sys\nfrom dlicmd.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    desk.environment["PATH"] = f"{desk.folder}:{desk.environment['PATH']}"
    return desk


class Zsh:
    """A zsh on a terminal."""

    def __init__(self, desk: Desk) -> None:
        self._told = desk.folder / "told"
        self._keys, terminal = pty.openpty()
        setup = desk.folder / "setup.zsh"
        setup.write_text(ZSH.format(folder=desk.folder))
        self._shell = subprocess.Popen(
            ["zsh", "-f", "-i"], env=desk.environment | {"TERM": "xterm"}, cwd=desk.folder, stdin=terminal,
            stdout=terminal, stderr=terminal, start_new_session=True,
        )
        os.close(terminal)
        self.screen = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._answer(f"source {setup}\n") == ["ready"]

    def offers(self, line: str) -> list[str]:
        """Return the candidates at the end of this line."""
        return [each for each in self._answer(f"\x15{line}\x18o") if each]

    def tab(self, line: str) -> str:
        """Return the line after a TAB."""
        return "\n".join(self._answer(f"\x15{line}\t\x18l"))

    def _answer(self, keys: str) -> list[str]:
        self._told.unlink(missing_ok=True)
        os.write(self._keys, keys.encode())
        try:
            eventually(self._told.exists, f"zsh answers {keys!r}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.screen.decode(errors='replace')[-2000:]}") from None
        return self._told.read_text().splitlines()

    def _read(self) -> None:
        with suppress(OSError):
            while piece := os.read(self._keys, 4096):
                self.screen += piece

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._keys)


@pytest.fixture
def zsh(desk: Desk, local: FakeServer) -> Iterator[Zsh]:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    shell = Zsh(with_command(desk))
    yield shell
    shell.close()


def execs(local: FakeServer) -> None:
    for name in ("w-1", "w-2", "other", "$(touch evil)", "two words", "*"):
        local.execs[name] = exec_object(name)


def test_zsh_completes_options_ids_values_and_files(zsh: Zsh, desk: Desk, local: FakeServer) -> None:
    execs(local)
    assert zsh.offers("dlicmd --exec-st") == ["--exec-start", "--exec-stop"]
    assert sorted(zsh.offers("dlicmd --")) == ALL
    assert zsh.tab("dlicmd --exec-sta") == "dlicmd --exec-start "
    assert zsh.offers("dlicmd --exec-get ") == ["last", "other", "w-2", "w-1"]
    assert zsh.tab("dlicmd --exec-get ot") == "dlicmd --exec-get other "
    assert zsh.offers("dlicmd --exec-start ") == ["PyTorch"]
    assert zsh.offers("dlicmd --exec-start PyTorch --workerDeviceType ") == ["cpu", "gpu"]
    assert zsh.offers("dlicmd --exec-get-all -o j") == ["json", "jsonl"]
    (desk.folder / "models").mkdir()
    (desk.folder / "models.txt").touch()
    assert zsh.tab("dlicmd --exec-start PyTorch --model-dir mod") == "dlicmd --exec-start PyTorch --model-dir models/"
    assert zsh.offers("dlicmd --exec-start PyTorch -- mod") == ["models", "models.txt"]
    assert not (desk.folder / "evil").exists()
    assert b"not found" not in zsh.screen and b"parse error" not in zsh.screen


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_options_ids_values_and_files(desk: Desk, local: FakeServer, tmp_path: Path) -> None:
    execs(local)
    with_command(desk)
    (desk.folder / "models").mkdir()
    (desk.folder / "models.txt").touch()

    def offers(line: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", 'dlicmd --completion fish | source; complete -C "$argv"', line],
            env=desk.environment, cwd=desk.folder, capture_output=True, text=True, timeout=PATIENCE, check=True,
        )
        assert done.stderr == "", done.stderr
        return [each.partition("\t")[0] for each in done.stdout.splitlines()]

    assert sorted(offers("dlicmd --exec-st")) == ["--exec-start", "--exec-stop"]
    assert sorted(offers("dlicmd --")) == ALL
    assert sorted(offers("dlicmd --exec-get ")) == ["last", "other", "w-1", "w-2"]
    assert offers("dlicmd --exec-get ot") == ["other"]
    assert offers("dlicmd --exec-start ") == ["PyTorch"]
    assert sorted(offers("dlicmd --exec-start PyTorch --workerDeviceType ")) == ["cpu", "gpu"]
    assert sorted(offers("dlicmd --exec-get-all -o j")) == ["json", "jsonl"]
    assert offers("dlicmd --exec-start PyTorch --model-dir mod") == ["models/"]
    assert sorted(offers("dlicmd --exec-start PyTorch -- mod")) == ["models.txt", "models/"]
    assert not (desk.folder / "evil").exists()
