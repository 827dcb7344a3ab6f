"""Runs dlicmd in this process, fast enough for thousands of commands."""

from __future__ import annotations

import contextlib
import io
import json
import re
from unittest.mock import patch

from dlicmd import cli
from dlicmd.contract.exits import Exit


def run(*words: str) -> tuple[int, str, str]:
    """Run dlicmd, and return exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch("sys.stdin", io.StringIO()):
        code = cli.main(list(words))
    return code, out.getvalue(), err.getvalue()


def check(*words: str) -> int:
    """Run dlicmd, check the form of its error messages, and return the exit code."""
    code, out, err = run(*words)
    assert code in set(Exit), (words, code)
    assert "Traceback" not in err + out and "for the traceback" not in err, (words, err)
    assert "\x1b" not in err and "\u202e" not in err, (words, err)
    if code == Exit.USAGE:
        # Warnings about typos come first; the last line is the error. It names a help or a command.
        last = err.splitlines()[-1]
        said = json.loads(last)["error"]["message"] if last.startswith("{") else last
        assert re.search(r"(Try 'dlicmd ([a-z0-9-]+ )?--help'\.|; did you mean: dlicmd [^'\n]+)$", said), (words, err)
        assert len(last) < 6000, (words, err)
        assert err.count("Try 'dlicmd ") + err.count("; did you mean: dlicmd ") == 1, (words, err)
    return code
