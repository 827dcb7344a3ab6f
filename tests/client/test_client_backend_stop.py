"""What `local-backend stop --jobs` says, and when."""

from __future__ import annotations

from typing import Any

import pytest

from dlicmd.contract import wire
from local_backend import cli


def test_before_waiting_it_says_for_what_and_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def call(_found: dict[str, Any], method: str, path: str) -> Any:
        if path == wire.STATUS:
            return {wire.STOP_GRACE: 7.0}
        if method == "POST":
            said.append(capsys.readouterr().out)
        return [{"id": "local-1", "state": "KILLED"}, {"id": "local-3", "state": "RUNNING"}]

    monkeypatch.setattr(cli, "call", call)
    cli._stop_jobs({}, ["local-1", "local-2"])
    assert said == ["stopping local-1, local-2; jobs get 7 s to end\n", ""]
    assert capsys.readouterr().out == "stopped local-1, local-2\n"
