"""The question before a command that destroys more than one thing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dlicmd.cli.session import Session
from dlicmd.contract import states, wire
from dlicmd.contract.options import YES
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import info


def confirmed(session: Session, question: str) -> bool:
    """Return whether the user agrees, with --yes or with an answer on the terminal. Raises UsageProblem without both:
    a script of a verb must say --yes."""
    if session.line.flag(YES):
        return True
    if not is_answerable():
        raise UsageProblem(f"{question} Nothing was changed, because there is no terminal for the answer; add {YES}")
    if agreed(question):
        return True
    info("nothing was changed")
    return False


def confirmed_on_terminal(session: Session, question: Callable[[], str]) -> bool:
    """Return whether the user agrees; without a terminal, and for scripts of the original client, always. `question`
    is called only if the user is asked; an empty question needs no answer."""
    if session.output.is_original or session.line.flag(YES) or not is_answerable():
        return True
    asked = question()
    return not asked or confirmed(session, asked)


def counted(names: Collection[str], listed: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of jobs, and how many of them run: `206 jobs, 1 of them running`."""
    running = sum(item.get(wire.ID) in names and item.get(wire.STATE) == states.RUNNING for item in listed)
    jobs = f"{len(names):,} job" + ("s" if len(names) != 1 else "")
    return jobs + (f", {running:,} of them running" if running else "")


def agreed(question: str) -> bool:
    """Return whether the user answers a question on the terminal with yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_answerable() -> bool:
    """Return whether the user can read and answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()
