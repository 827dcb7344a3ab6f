"""dlim on a terminal: the view that is drawn again, the log of `run`, and questions."""

from __future__ import annotations

import sys

import pytest
from dlim_desk import DlimDesk, ModelServer
from screen_desk import Screen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="terminals of Unix")
DLIM = (sys.executable, "-c", "import sys; from dlicmd.dlim import main; sys.exit(main())")


def test_top_shows_changes_until_q(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    screen = Screen(desk, "top", program=DLIM)
    screen.until("pingpong")
    local.add("digits", started=True)
    screen.until("digits")
    assert screen.lines[0].startswith("2 models: 2 started")
    screen.press("q")
    assert screen.ended() == 0


def test_run_follows_the_log_until_ctrl_c(desk: DlimDesk, local: ModelServer) -> None:
    desk.pingpong()
    local.logs["pingpong"] = "2026-01-01 00:00:00.000000: I kernel is ready\n"
    screen = Screen(desk, "run", "pingpong", program=DLIM)
    screen.until("kernel is ready")
    assert "Authorization: Bearer" in screen.text
    screen.press("\x03")
    screen.until("dlim model stop pingpong")
    assert screen.ended() == 130 and local.models["pingpong"]["service_uri"]


@pytest.mark.parametrize(("words", "answer", "is_done"), [
    (("stop", "pingpong"), "n", False), (("stop", "pingpong"), "y", True), (("stop", "pingpong", "-f"), "", True)])
def test_stop_asks_on_a_terminal(
    desk: DlimDesk, local: ModelServer, words: tuple[str, ...], answer: str, is_done: bool
) -> None:
    local.add("pingpong", started=True)
    screen = Screen(desk, "model", *words, program=DLIM)
    if answer:
        screen.until("[y/N]")
        screen.press(f"{answer}\r")
    assert screen.ended() == (0 if is_done else 1)
    assert bool(local.requests("PUT", "operation/stop")) == is_done
