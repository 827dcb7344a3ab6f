"""Foreign text in names, logs and messages stays plain text on a terminal: it has no effect and hides nothing."""

from __future__ import annotations

import json
import re

import pytest
from client_desk import Desk
from fake_server import FakeServer, Reply, exec_object

from dlicmd.sdk.messages import inert

#: Complete sequences: `inert` removes them entirely.
WHOLE = [
    "\x1b[2J", "\x1b[31m", "\x1b[1;31;40m", "\x1b[?1049h", "\x1b[6n", "\x1b[3 q", "\x1b[!p", "\x1b[>c", "\x9b2J",
    "\x1bc", "\x1b7",
    "\x1b(0", "\x1b#8", "\x1b=", "\x1b]0;title\x07", "\x1b]0;title\x1b\\", "\x1b]52;c;cm0gLXJmIC8=\x07",
    "\x1b]8;;http://evil.example\x1b\\", "\x1b]1337;File=:AA==\x07", "\x1bP+q544e\x1b\\", "\x1b_Gf=24;AAAA\x1b\\",
    "\x1b^x\x1b\\", "\x1bXx\x1b\\", "\x07", "\x08\x08\x08", "\x00", "\x7f", "\x0e", "\x85", "\u202e", "\u2066",
    "\u200f", "\u061c", "\u200b", "\u2060", "\ufeff", "\xad", "\U000e0041",
]
#: Unterminated sequences: the text after them must stay visible.
OPEN = ["\x1b", "\x1b[", "\x1b]", "\x1b]0;", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x9b", "\x9d", "\x90", "\x1b[1;",
        "\x1b(", "\x1b#", "\x1b]52;c;", "\x1b[ ", "\x98"]
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("sequence", WHOLE, ids=ascii)
def test_complete_sequences_are_removed(sequence: str) -> None:
    assert inert(f"before{sequence}after") == "beforeafter"


@pytest.mark.parametrize("sequence", OPEN, ids=ascii)
def test_an_unterminated_sequence_hides_no_text(sequence: str) -> None:
    found = inert(f"before{sequence}\nafter it\nand 'quoted{sequence}'. Then more.")
    assert found.startswith("before") and "\nafter it\nand 'quoted" in found and found.endswith("'. Then more.")
    assert not CONTROL.search(found)


@pytest.mark.parametrize("words", [
    ["--exec-get-all"], ["--exec-get", "w-1"], ["--exec-trainlogs", "w-1"], ["--exec-stop", "w-1"],
    ["--exec-outlogs", "w-1"], ["--dl-frameworks"], ["--status"], ["--app-get-all"], ["--exec-plot", "w-1"],
    ["--exec-diff", "w-1", "w-2"],
])
def test_text_of_a_server_has_no_effect_on_a_terminal(desk: Desk, fake: FakeServer, remote: list[str], words) -> None:
    bad = "".join(WHOLE) + "seen" + "".join(OPEN)
    texts = dict.fromkeys(("state", "appName", "creator", "framework", "args", "message", "workDir"), bad)
    fake.execs["w-1"] = exec_object("w-1", **texts)
    fake.logs["w-1"] = f"Iteration 1: tag train_loss, simple_value 0.5{bad}\n{bad}\nthe end\n"
    fake.execs["w-2"] = exec_object("w-2")
    fake.conf["DLICMD_EXTENSIONS"] = "metrics,code"
    values = {"grouplabel": bad, "values": {bad: {"value": bad}}}
    fake.metrics["w-1"] = json.dumps(values)
    fake.code["w-1"] = {"files": [{"path": bad, "bytes": 1, "text": f"{bad}\r\n{bad}"}, {"path": "b", "sha256": bad}]}
    base = "/platform/rest/deeplearning/v1"
    fake.replies |= {
        ("GET", f"{base}/scheduler/applications/w-1/executor/1/logs/stdout"): Reply(200, f"{bad}\nthe end\n".encode()),
        ("POST", f"{base}/execs/w-1/stop"): Reply(500, f"Error 500: {bad}.\n".encode()),
        ("GET", f"{base}/status"): Reply(200, bad.encode()),
    }
    shown = desk.on_a_terminal(*words, *remote, may_fail=True, NO_COLOR="1")
    left = re.sub(r"\x1b\[[0-9;]*m", "", shown)  # bold of dlicmd itself
    assert not CONTROL.search(left), ascii(left)
    if "log" in words[0]:
        assert "the end" in shown


@pytest.mark.parametrize("verb", ["get", "why"])
def test_a_carriage_return_of_a_program_begins_no_line_of_dlicmd(
    desk: Desk, fake: FakeServer, remote: list[str], verb: str
) -> None:
    """The quoted end of standard error has an indent, so that it cannot be read as advice of dlicmd."""
    fake.conf["DLICMD_EXTENSIONS"] = "log-lines,why"
    fake.execs["w-1"] = exec_object("w-1", state="ERROR", message="exit code 1")
    base = "/platform/rest/deeplearning/v1/execs/w-1"
    fake.replies["GET", f"{base}/lines"] = Reply(
        200, b"2026-11-23T20:10:01.500Z task12n-1 stderr 10 %\rnext: dlicmd rm w-1\n")
    fake.replies["GET", f"{base}/why"] = Reply(200, b'{"id": "w-1", "state": "ERROR"}')
    shown = desk.on_a_terminal(verb, "w-1", *remote, may_fail=True, NO_COLOR="1")
    quoted = [line for line in shown.splitlines() if "dlicmd rm w-1" in line]
    assert len(quoted) == 1 and quoted[0].startswith("  "), shown
