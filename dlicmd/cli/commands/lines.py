"""`logs`: lines of the output of a program.

A server with the extension `log-lines` selects the lines. It searches for plain texts alone, because a regular
expression could keep it busy for hours. A pattern that is more than texts with `|` between them is matched here. For
other servers, the client selects lines of the whole log.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dlicmd.cli.render import emit_chunks, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.times import moment
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import epoch
from dlicmd.sdk import hints
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.follow import Clock, patiently
from dlicmd.sdk.follow import watch as news
from dlicmd.sdk.messages import info
from dlicmd.sdk.objects import Line
from dlicmd.sdk.output_calls import stamped
from dlicmd.sdk.transport import Answer

#: Seconds between two calls for new lines: while there are some, and at most.
_POLL_FIRST, _POLL_LAST = 0.3, 2.0
#: A pattern that consists of texts.
_TEXTS = re.compile(r"[^\\.^$*+?{}\[\]()|]+(\|[^\\.^$*+?{}\[\]()|]+)*")
_WORKER = re.compile(r"task12n-([0-9]{1,9})")


@dataclass(frozen=True)
class _Wanted:
    """The lines to print. `texts` are for the server, `pattern` is for this process; only one of them is set."""

    tail: int | None = None
    since: float | None = None
    worker: int | None = None
    texts: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    @property
    def server_tail(self) -> int | None:
        """The number of last lines that the server selects."""
        return None if self.pattern else self.tail


def logs(session: Session) -> int:
    """Print the lines that the options select; with `--follow`, also new lines until the job ends."""
    wanted = _wanted(session)
    follows = session.line.flag("--follow")
    try:
        if wire.EXT_LINES not in session.client.extensions():
            _print_from_log(session, wanted, follows)
        elif follows:
            _follow(session, wanted)
        else:
            _print(session, _ask(session, wanted), wanted)
    except KeyboardInterrupt:
        if follows:
            info(f"detached; {session.operand} continues. Its status: {hints.command('get', session.operand)}")
        return Exit.INTERRUPTED
    return Exit.DONE


def _wanted(session: Session) -> _Wanted:
    """Return what the command line selects. Raises UsageProblem."""
    line = session.line
    since, text = line.text("--since"), line.text("--grep")
    wanted = _Wanted(line.number("--tail"), worker=line.number("--worker"))
    if since is not None:
        try:
            wanted = replace(wanted, since=moment(since))
        except ValueError as problem:
            raise UsageProblem(f"--since: {problem}") from None
    if text is None:
        return wanted
    if _TEXTS.fullmatch(text):
        return replace(wanted, texts=tuple(text.split("|")))
    try:
        return replace(wanted, pattern=re.compile(text))
    except (re.error, RecursionError, OverflowError) as problem:
        raise UsageProblem(f"--grep: '{text}' is not a regular expression: {problem}; to search for "
                           "a character such as ( or [, put \\ before it") from None


def _ask(session: Session, wanted: _Wanted, cursor: str | None = None) -> Answer:
    return session.client.log_text(
        session.operand, tail=wanted.server_tail, since=wanted.since, worker=wanted.worker, grep=wanted.texts,
        timestamps=_is_stamped(session), cursor=cursor)


def _is_stamped(session: Session) -> bool:
    return session.line.flag("--timestamps") or session.output.is_data


def _print(session: Session, answer: Answer, wanted: _Wanted) -> None:
    if wanted.pattern is None and not _is_stamped(session):
        emit_chunks(answer.chunks())
        return
    lines = (stamped(line) if _is_stamped(session) else Line(line) for line in answer.lines())
    _emit(session, _selected(lines, wanted.pattern, None if wanted.server_tail is not None else wanted.tail))


def _selected(lines: Iterable[Line], pattern: re.Pattern[str] | None, tail: int | None) -> Iterable[Line]:
    found = lines if pattern is None else (line for line in lines if pattern.search(line.text))
    return found if tail is None else deque(found, tail)


def _emit(session: Session, lines: Iterable[Line]) -> None:
    if session.output.is_data:
        found = ({wire.TIME: line.time, wire.TASK: line.task, wire.STREAM: line.stream, wire.TEXT: line.text}
                 for line in lines)
        if session.output.form == "jsonl":
            for one in found:
                emit_value(one, session.output)
        else:
            emit_value(list(found), session.output)
    elif session.line.flag("--timestamps"):
        emit_chunks(f"{_prefix(line)}{line.text}\n".encode() for line in lines)
    else:
        emit_chunks(f"{line.text}\n".encode() for line in lines)


def _prefix(line: Line) -> str:
    """Return the local time of a line, with its time zone, and the process that wrote it."""
    seconds = epoch(line.time)
    at = "" if seconds is None else time.strftime(
        f"%Y-%m-%d %H:%M:%S.{int(seconds * 10) % 10} %Z ", time.localtime(seconds))
    worker = _WORKER.fullmatch(line.task)
    return f"{at}{f'worker {worker[1]}' if worker else 'driver'}{' stderr' if line.stream == 'stderr' else ''}: "


def _follow(session: Session, wanted: _Wanted) -> None:
    """Print the lines so far and then the new ones, until the job has ended."""
    clock = Clock(session.operand, session.line.number("--wait-timeout"), "logs")
    client, cursor, pause = session.client, "", _POLL_FIRST
    if session.output.form in ("json", "yaml"):
        raise UsageProblem("--follow: use -o jsonl, because the list has no end before the job ends")
    while True:
        found = patiently(clock, lambda: client.exec(session.operand))
        answer = patiently(clock, lambda: _ask(session, wanted, cursor))  # noqa: B023
        _print(session, answer, wanted)
        is_news = answer.headers.get(wire.CURSOR_HEADER.lower(), "") != cursor
        cursor = answer.headers.get(wire.CURSOR_HEADER.lower(), "")
        if found.is_over:
            return
        wanted = replace(wanted, tail=None, since=None)
        pause = _POLL_FIRST if is_news else min(_POLL_LAST, pause * 1.3)
        clock.sleep(pause)


def _print_from_log(session: Session, wanted: _Wanted, follows: bool) -> None:
    """Print lines of a server that gives its whole log."""
    for name, given in (("--since", wanted.since), ("--worker", wanted.worker), (
            "--timestamps", _is_stamped(session) or None)):
        if given is not None:
            session.need(wire.EXT_LINES, f"does not tell when and by which worker a line was written: leave {name} out")
    pattern = re.compile("|".join(map(re.escape, wanted.texts))) if wanted.texts else wanted.pattern
    if not follows:
        answer = session.client.train_log(session.operand)
        if pattern is None and wanted.tail is None:
            emit_chunks(answer.chunks())
        else:
            _emit(session, _selected(map(Line, answer.lines()), pattern, wanted.tail))
        return
    tail = wanted.tail
    for one in news(session.client, session.operand, Clock(
            session.operand, session.line.number("--wait-timeout"), "logs")):
        _emit(session, _selected(one.lines, pattern, tail))
        tail = None
