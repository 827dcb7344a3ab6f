"""The module that runs first in each Python of a user's environment, called in this process and in plain ones."""

from __future__ import annotations

import fcntl
import os
import site
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import PATIENCE, eventually

from local_backend.runtime import overlay


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which the module lies, and of which this process seems to be a Python."""
    own = tmp_path / "lib"
    own.mkdir()
    monkeypatch.setattr(overlay, "__file__", str(own / "overlay.py"))
    monkeypatch.setattr(overlay, "_laid", False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(site, "getsitepackages", site.getsitepackages)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "orig_argv", ["python", "main.py"])
    monkeypatch.setenv(overlay._HELD, "")  # so that a value set by the module is removed afterwards
    monkeypatch.delenv(overlay._HELD)
    return own


def test_the_packages_of_the_server_come_last_and_once(environment: Path, tmp_path: Path) -> None:
    folders = [str(tmp_path / "server"), str(tmp_path / "below")]
    for folder in folders:
        os.mkdir(folder)
    overlay.lay(folders[:1])
    overlay.lay(folders)
    assert sys.path[-2:] == folders and site.getsitepackages() == [str(environment)]


def test_another_python_that_finds_the_module_is_left_alone(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere"))
    before = [*sys.path]
    overlay.lay([str(tmp_path)])
    assert sys.path == before and str(environment) not in site.getsitepackages()


@pytest.mark.parametrize(("words", "found"), [
    ("-m pip install x", True), ("/usr/bin/pip3.11 uninstall -y x", True), ("-I -m pip install -e .", True),
    ("-m pip list", False), ("main.py install", False), ("-c pass", False), ("", False), ("-m pip", False),
])
def test_a_pip_that_changes_packages_is_recognized(words: str, found: bool) -> None:
    assert overlay.installs(["python", *words.split()]) is found


def test_a_second_pip_waits_until_the_first_ends(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pip", "install", "x"])
    with (tmp_path / ".pip.lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(target=overlay.lay, args=([],))
        second.start()
        said: list[str] = []
        eventually(lambda: said.append(capsys.readouterr().err) or "waiting" in "".join(said), "the second pip waits")
        assert second.is_alive()
        fcntl.flock(first, fcntl.LOCK_UN)
        second.join(PATIENCE)
    assert not second.is_alive() and os.environ[overlay._HELD] == str(os.getpid())
    monkeypatch.setattr(overlay, "_laid", False)
    overlay.lay([])  # a child process of the second pip does not wait for it


@pytest.mark.parametrize(("exec_id", "number", "short"), [
    ("local-7", 2, "local-7 w2"), ("local-7", 0, "local-7 driver"), ("a-1", 1, "dlicmd a-1 w1"),
])
def test_the_title_in_top_has_at_most_15_characters(exec_id: str, number: int, short: str) -> None:
    assert overlay.short_title(overlay.title_of(exec_id, number)) == short


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")
def test_a_process_shows_its_title_and_goes_on_without_proc() -> None:
    script = ("from local_backend.runtime import overlay\n"
              "overlay.show_title('dlicmd local-7 worker 2')\n"
              "print(open('/proc/self/cmdline').read().rstrip('\\0'))\n"
              "print(open('/proc/self/comm').read().strip())\n"
              "def fail(*_):\n    raise OSError\n"
              "overlay.open = fail\n"
              "overlay.show_title('another')\n"
              "del overlay.open\n"
              "print(open('/proc/self/comm').read().strip())\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.splitlines() == ["dlicmd local-7 worker 2", "local-7 w2", "local-7 w2"]
