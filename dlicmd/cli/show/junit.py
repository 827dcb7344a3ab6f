"""`--junit FILE`: the end of a job that dlicmd waited for, as the XML that CI systems show beside test results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from xml.etree import ElementTree as ET

from dlicmd.cli.config import small_file
from dlicmd.cli.session import Session
from dlicmd.contract import states, wire
from dlicmd.contract.exits import MEANING, Exit
from dlicmd.contract.reading import epoch
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.messages import inert

OPTION = "--junit"
#: Commands that wait for a job of an earlier submission.
_LATER = ("--wait", "--follow")
#: The most lines and characters of the output of a failed job.
_LINES, _CHARACTERS = 200, 2**16
#: Characters that XML cannot hold in any notation.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def reported(session: Session, command: Callable[[Session], int]) -> int:
    """Run a command that waits for a job, and write the file, however the command ends. Raises UsageProblem, and the
    errors of the command."""
    name = session.line.text(OPTION) or ""
    if not (session.line.command in (*_LATER, "--demo") or session.line.flag("--wait")
            or session.line.flag("--follow")):
        raise UsageProblem(f"{OPTION} needs the end of the job: add --wait or --follow")
    small_file.check_writable(OPTION, name)
    begin = time.time()
    try:
        if session.line.command in _LATER:
            # Fetch the exec now, so that the test case has the exec's name even if the wait fails.
            session.watched.update(session.client.exec(session.operand))
        code = command(session)
    except BaseException as problem:
        why = str(problem) if isinstance(problem, DlicmdError) else f"dlicmd failed with {type(problem).__name__}"
        _write(name, session, begin, type(problem).__name__, why)
        raise
    _write(name, session, begin, *_verdict(session, code))
    return code


def _verdict(session: Session, code: int) -> tuple[str, str]:
    """Return kind and reason of a failure; both empty for a job that FINISHED."""
    if code == Exit.DONE:
        return "", ""
    found = session.watched
    state, message = str(found.get(wire.STATE, "")), str(found.get(wire.MESSAGE) or "")
    if code == Exit.INTERRUPTED:
        return "INTERRUPTED", MEANING[Exit.INTERRUPTED]
    return state, message or f"the job ended {state}"


def _write(name: str, session: Session, begin: float, kind: str, why: str) -> None:
    found = session.watched
    ended = states.is_terminal(str(found.get(wire.STATE, "")))
    failed, wrong = bool(kind and ended), bool(kind and not ended)
    first, last = epoch(found.get(wire.START_TIME)), epoch(found.get(wire.END_TIME))
    took = time.time() - begin if first is None or last is None else last - first
    counts = {"tests": "1", "failures": str(int(failed)), "errors": str(int(wrong)), "time": f"{max(0.0, took):.3f}"}
    root = ET.Element("testsuites", counts)
    started = datetime.fromtimestamp(begin, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    suite = ET.SubElement(root, "testsuite", {"name": "dlicmd", **counts, "skipped": "0", "timestamp": started})
    later = session.line.command in _LATER
    title = " ".join(filter(None, (_text(found, wire.APP_NAME), _text(found, wire.ID))))
    framework = _text(found, wire.FRAMEWORK) or (not later and session.operand) or "exec"
    case = ET.SubElement(suite, "testcase", {
        "classname": _fit(f"dlicmd.{framework}"), "name": title or _fit(session.operand if later else "submission"),
        "time": counts["time"],
    })
    if kind:
        element = ET.SubElement(case, "failure" if failed else "error", {"type": kind, "message": _fit(why)})
        element.text = _fit(why)
    if failed:
        ET.SubElement(case, "system-out").text = _fit(_output(session))
    small_file.write(OPTION, name, ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _output(session: Session) -> str:
    """Return the end of the program's output, or the error that prevents this."""
    try:
        text = session.client.train_log(str(session.watched[wire.ID])).text()
    except DlicmdError as problem:
        text = str(problem)
    return "\n".join(text[-_CHARACTERS:].rstrip("\n").split("\n")[-_LINES:])


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    return _fit(value) if isinstance(value, str) else ""


def _fit(text: str) -> str:
    return _NO_XML.sub("", inert(text))
