"""The progress bar of long operations."""

from __future__ import annotations

import io

import pytest

from dlicmd.cli.show import progress


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
