"""Calls about one object or several, one call for each or one for all, and the outcome for each object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dlicmd.cli.console import error
from dlicmd.cli.render import Output, emit, emit_value
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.sdk.calls import BAD_REQUEST
from dlicmd.sdk.errors import Denied, NoSuchApplication, ServerError
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.retry import OK
from dlicmd.sdk.transport import Answer

_UNAUTHORIZED = 401
_BY_ITSELF = "had already finished"


class CallOutcome(NamedTuple):
    """The outcome for one object. `said` is for people; `status` is 0 if there was nothing to do. A failure has a code
    (contract.error_codes) and an exit code."""

    name: str
    ok: bool
    status: int
    said: str = ""
    code: str = ""
    exit_code: Exit = Exit.DONE

    @classmethod
    def of_error(cls, name: str, problem: ServerError, output: Output) -> CallOutcome:
        """Return the outcome of a call that the server refused. The original client prints the server's own text.
        Raises the error if a logon is needed before any call."""
        if output.is_original and is_logon_needed(problem):
            raise problem
        said = problem.body.strip() if output.is_original else str(problem)
        return cls(name, False, problem.status, said, problem.code, problem.exit_code)

    def sentence(self, what: str, output: Output) -> str:
        """Return the sentence that scripts know, exact to the last space; `what` is, for example,
        `Stop application`. For the original client, it has the server's text about a failure, too."""
        went = "succeed" if self.ok else "failed"
        said = self.said if self.ok or output.is_original else ""
        return f"{what} {inert(self.name)} {went}. HTTP:{self.status} {inert(said)}"

    @property
    def value(self) -> dict[str, Any]:
        """The outcome for programs."""
        found: dict[str, Any] = {wire.ID: self.name, wire.OK: self.ok}
        if self.status:
            found["status"] = self.status
        return found | ({wire.MESSAGE: self.said} if self.said else {})


def is_logon_needed(problem: ServerError) -> bool:
    """Return whether the server refuses every call of this user, because the token is missing or invalid."""
    return isinstance(problem, Denied) and problem.status == _UNAUTHORIZED


def do(what: str, name: str, call: Callable[[str], int], output: Output) -> int:
    """Run `call` for one name, print the outcome and return the exit code. An error of `call` is printed and raised
    again."""
    try:
        outcome = CallOutcome(name, ok=True, status=call(name))
    except ServerError as problem:
        _show(what, CallOutcome.of_error(name, problem, output), output)
        raise
    _show(what, outcome, output)
    return Exit.DONE


def tell(
    what: str, names: Iterable[str], call: Callable[[str], Answer], output: Output,
    done: Callable[[str], bool] = lambda _: False,
) -> int:
    """Run `call` for every name, even after a failure, and print the outcomes. Return the exit code. A failure does
    not count if `done` then says that there was nothing left to do."""
    code, found = Exit.DONE, []
    try:
        for name in names:
            try:
                answer = call(name)
                outcome = CallOutcome(name, ok=True, status=answer.status, said=" ".join(answer.text().split()))
            except ServerError as problem:
                if done(name):
                    outcome = CallOutcome(name, ok=True, status=0, said=_BY_ITSELF)
                else:
                    outcome = CallOutcome.of_error(name, problem, output)
                    code = problem.exit_code
            found.append(outcome)
            _say(what, outcome, output)
    finally:
        _list(found, output)
    return code


def tell_together(what: str, outcomes: Iterable[Mapping[str, Any]], output: Output, *, over_is_done: bool) -> int:
    """Print the outcomes that `Client.stop_applications` returned, and return the exit code. With `over_is_done`, an
    application that has ended is not a failure."""
    code, found = Exit.DONE, []
    for one in outcomes:
        name, said = (str(one.get(key, "")) for key in (wire.ID, wire.MESSAGE))
        if one.get(wire.STOPPED_NOW):
            outcome = CallOutcome(name, ok=True, status=OK, said=said)
        elif over_is_done and wire.STATE in one:
            outcome = CallOutcome(name, ok=True, status=0, said=_BY_ITSELF)
        else:
            kind = ServerError if wire.STATE in one else NoSuchApplication
            code = kind.exit_code
            outcome = CallOutcome(name, False, BAD_REQUEST, said, kind.code, code)
        found.append(outcome)
        _say(what, outcome, output)
    _list(found, output)
    return code


def _say(what: str, outcome: CallOutcome, output: Output) -> None:
    """Print one of several outcomes, for people as soon as it is known."""
    if not outcome.status:
        info(f"{inert(outcome.name)} {outcome.said}")
        return
    if not output.is_data:
        emit(outcome.sentence(what, output))
    if not outcome.ok:
        error(inert(outcome.said), outcome.code, outcome.exit_code)


def _list(found: list[CallOutcome], output: Output) -> None:
    if output.is_data:
        emit_value([outcome.value for outcome in found], output)


def _show(what: str, outcome: CallOutcome, output: Output) -> None:
    if output.is_data:
        emit_value(outcome.value, output)
    else:
        emit(outcome.sentence(what, output))
