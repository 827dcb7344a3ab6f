"""The progress bar of long operations."""

from __future__ import annotations

import io
import sys

import pytest
from client_desk import Desk
from screen_desk import Screen

from dlicmd.cli.show import progress

#: Shows a bar until Ctrl-C.
_ENDLESS = """
import sys, time
from dlicmd.cli.show import progress
progress.PATIENCE = -1
try:
    with progress.bar("packing 1,234,567 files", 300 * 2**20) as step:
        step(100 * 2**20)
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("patience", "shown"), [(-1.0, True), (60.0, False)])
def test_a_bar_appears_only_if_the_operation_takes_long(
        monkeypatch: pytest.MonkeyPatch, patience: float, shown: bool) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", patience)
    with progress.bar("fetching", 10) as step:
        assert step is not None
        step(5)
        step(10)
    assert ("fetching" in terminal.getvalue()) is shown


def test_the_speed_of_a_resumed_operation_leaves_out_earlier_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    with progress.bar("downloading 1 file", 2**40) as step:
        assert step is not None
        step(2**39)
        step(2**39)
    assert "0B/s" in terminal.getvalue() and "T/s" not in terminal.getvalue()


def test_a_bar_has_the_sizes_of_messages_and_leaves_nothing_after_an_interrupt(desk: Desk) -> None:
    screen = Screen(desk, program=(sys.executable, "-c", _ENDLESS))
    screen.until("100.0M/300.0M")
    assert screen.lines[0].startswith("packing 1,234,567 files") and len(screen.lines) == 1
    screen.press("\x03")
    assert screen.ended() == 1
    assert screen.lines == ["interrupted"]
