"""One call for each of several names, or one for all of them, and how each of them went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dlicmd.answers import BAD_REQUEST
from dlicmd.console import error, inert, info
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.errors import ServerError
from dlicmd.render import emit
from dlicmd.retry import OK
from dlicmd.transport import Answer


def tell(
    what: str, names: Iterable[str], call: Callable[[str], Answer], done: Callable[[str], bool] = lambda _: False
) -> int:
    """Do `call` for every name, also when it fails for one, and say how it went, in the words that scripts know: `Stop
    application ID succeed. HTTP:200 ...`, where `what` is `Stop application`. The exit code. It has not failed where
    after it `done` says that nothing was left to do."""
    code = Exit.DONE
    for name in names:
        try:
            answer = call(name)
            said = inert(" ".join(answer.text().split()))
        except ServerError as problem:
            if done(name):
                info(f"{inert(name)} has ended by itself")
                continue
            emit(f"{what} {inert(name)} failed. HTTP:{problem.status} ")
            error(str(problem))
            code = problem.exit_code
        else:
            emit(f"{what} {name} succeed. HTTP:{answer.status} {said}")
    return code


def tell_together(what: str, outcomes: Iterable[dict[str, Any]], *, over_is_done: bool) -> int:
    """Say the same of what `Client.stop_applications` answers. With `over_is_done` one that has ended is no failure."""
    code = Exit.DONE
    for outcome in outcomes:
        name, said = (inert(str(outcome.get(key, ""))) for key in (wire.ID, wire.MESSAGE))
        if outcome.get(wire.STOPPED_NOW):
            emit(f"{what} {name} succeed. HTTP:{OK} {said}")
        elif over_is_done and wire.STATE in outcome:
            info(f"{name} has ended by itself")
        else:
            emit(f"{what} {name} failed. HTTP:{BAD_REQUEST} ")
            error(said)
            code = Exit.FAILED if wire.STATE in outcome else Exit.NO_SUCH_ID
    return code
