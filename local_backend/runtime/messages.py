"""Messages between the server and the runner of an exec, as types and as JSON objects (docs/adoption.md).

A peer may send anything: `from_runner` and `from_server` return None for a message that is not valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from local_backend.runtime import progress
from local_backend.runtime.launch import ProcessId, parse_outcome
from local_backend.runtime.launcher import Held, Outcome
from local_backend.scheduler.model import Allocation, Slot

_HIGHEST = 2**53


@dataclass(frozen=True)
class Begun:
    """The attempt has begun in this process. Sent once, before all other messages."""

    process: ProcessId


@dataclass(frozen=True)
class StartRefused:
    """The attempt cannot begin now. Sent once, instead of all other messages."""

    why: str


@dataclass(frozen=True)
class Progressed:
    """The progress of the program, see `progress.valid`."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Exited:
    """The attempt has ended: exit.json is written, and no process of the job is left."""

    outcome: Outcome


@dataclass(frozen=True)
class Hello:
    """A server has connected to the socket of the runner. Sent before all other messages, see `server_proof`."""

    proof: str


@dataclass(frozen=True)
class SetAside:
    """See `Run.set_aside`."""

    sequence: int


@dataclass(frozen=True)
class GpusMeasured:
    """How busy the GPUs of the job are: id of the slot → fraction of the time, and used bytes. Runners of an earlier
    version ignore it."""

    uses: Mapping[str, tuple[float, int]]


FromRunner = Begun | StartRefused | Held | Progressed | Exited

#: Name of the message on the wire → its type.
_EVENTS: Mapping[str, type[FromRunner]] = {
    "begun": Begun, "refused": StartRefused, "held": Held, "progress": Progressed, "exit": Exited,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def of_runner(message: FromRunner) -> dict[str, Any]:
    """Return the JSON object of a message from a runner."""
    return {"event": _NAMES[type(message)], **asdict(message)}


def from_runner(value: Mapping[str, Any], attempt: int) -> FromRunner | None:
    """Return the message of the runner of an attempt."""
    match value:
        case {"event": "begun", "process": {"pid": int(pid), "start_time": int() | float() as began}} if pid > 0:
            return Begun(ProcessId(pid, began))
        case {"event": "refused", "why": str(why)}:
            return StartRefused(why)
        case {
            "event": "held", "sequence": int(sequence), "slots": list(slots), "held": list(held),
            "workers": list(workers), "recovering": bool(recovering), "usable": int() | None as usable,
        } if _count(sequence) and all(map(_count, workers)):
            # Runners of an earlier version know no rests.
            rest, rested = (found if _count(found := value.get(name)) else None for name in ("rest", "rested"))
            return Held(sequence, _texts(slots), _texts(held), tuple(workers), recovering, usable, rest, rested,
                        value.get("stored") is True)
        case {"event": "progress", "values": dict(values)}:
            return Progressed(progress.valid(values))
        case {"event": "exit", "outcome": outcome} if (found := parse_outcome(outcome, attempt)) is not None:
            return Exited(found)
    return None


FromServer = Hello | Allocation | SetAside | GpusMeasured

_OPS: Mapping[type[FromServer], str] = {
    Hello: "hello", Allocation: "allocate", SetAside: "set_aside", GpusMeasured: "gpus",
}


def of_server(message: FromServer) -> dict[str, Any]:
    """Return the JSON object of a message from a server."""
    return {"op": _OPS[type(message)], **asdict(message)}


def from_server(value: Mapping[str, Any]) -> FromServer | None:
    """Return the message that the server sent."""
    match value:
        case {"op": "hello", "proof": str(proof)}:
            return Hello(proof)
        case {"op": "allocate", "sequence": int(sequence), "slots": list(slots)} if _count(sequence):
            try:
                found = tuple(Slot(**slot) for slot in slots)
            except TypeError:
                return None
            rest = value.get("rest")
            sound = rest is None or _count(rest)
            if sound and all(isinstance(text, str) for slot in found for text in (slot.id, slot.kind, slot.device)):
                return Allocation(found, sequence, rest)
        case {"op": "gpus", "uses": dict(uses)}:
            return GpusMeasured({slot: (float(use[0]), use[1]) for slot, use in uses.items() if _is_use(use)})
        case {"op": "set_aside", "sequence": int(sequence)} if _count(sequence):
            return SetAside(sequence)
    return None


def _is_use(value: object) -> bool:
    match value:
        case [int() | float() as busy, memory] if _count(memory):
            return 0 <= busy <= 1
    return False


def _count(value: object) -> bool:
    """Return whether a value is a count. Python treats `true` as 1, but a database may not."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _HIGHEST


def _texts(values: list[object]) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str))
