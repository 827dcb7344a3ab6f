"""An application, as the scheduler's engine describes it. What a server leaves out is None here, or "", or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dlicmd.contract import states, wire
from dlicmd.contract.reading import number, objects, words

ACTIVE_STATES = tuple(sorted(states.ACTIVE))
ENDED_STATES = tuple(sorted(states.TERMINAL))
#: Column of a table → field.
FIELDS = {"consumer": "consumer", "submit_user": "submit_user", "name": "name", "pri": "priority", "type": "type",
          "tag": "tag"}
#: What is counted of a job, as `task0_resreq` and `task12n_resreq` name it, and as the server says it is used.
_COUNTED = {"cpu": ("ncpus", "used_cpu"), "gpu": ("ngpus", "used_gpu"), "mem": ("mem", "used_mem")}
_RUNNING = frozenset({states.LAUNCHING, states.RUNNING, states.RECOVERING})
_PENDING = frozenset({states.NEW, states.SUBMITTED, states.PENDING_JOB, states.PENDING, states.RECOVERING, "PENDING"})
#: Columns of --app-analyze.
BUCKETS = ("PENDING", "RUNNING", "FINISHED", "KILLED", "ERROR", "UNKNOWN")


class Resources(NamedTuple):
    """An amount of each; `mem` in MB. None: the server does not say."""

    cpu: float | None = None
    gpu: float | None = None
    mem: float | None = None

    def __add__(self, other: object) -> Resources:
        """Of both; what one of them does not say counts as none there."""
        assert isinstance(other, Resources)
        return Resources(*(_sum(pair) for pair in zip(self, other, strict=True)))

    def times(self, count: float) -> Resources:
        """So many of them."""
        return Resources(*(None if value is None else value * count for value in self))


def identity(found: Mapping[str, Any]) -> str:
    """The id, "" for none."""
    return words(found.get(wire.ID))


def state(found: Mapping[str, Any]) -> str:
    """The state on the wire; SUBMITTED for the empty one right after submission."""
    return words(found.get(wire.STATE)) or states.SUBMITTED


def is_active(found: Mapping[str, Any]) -> bool:
    """Whether it waits or runs. A state that nobody knows is no such one."""
    return state(found) in states.ACTIVE


def is_running(found: Mapping[str, Any]) -> bool:
    """Whether it holds what it asked for."""
    return state(found) in _RUNNING


def bucket(found: Mapping[str, Any]) -> str:
    """The column of --app-analyze that it counts in."""
    known = state(found)
    if known in _PENDING:
        return "PENDING"
    if known in _RUNNING:
        return "RUNNING"
    return known if known in states.TERMINAL else "UNKNOWN"


def submitted(found: Mapping[str, Any]) -> Any:
    """Epoch seconds of its submission, or None."""
    return _time(found, "submit_time")


def started(found: Mapping[str, Any]) -> Any:
    """Epoch seconds of its start, or None."""
    return _time(found, "start_time")


def ended(found: Mapping[str, Any]) -> Any:
    """Epoch seconds of its end, or None."""
    return _time(found, "end_time")


def kind(found: Mapping[str, Any]) -> str:
    """Training, Notebook, Inference, or what else the server calls it."""
    return words(found.get("type"))


def consumer(found: Mapping[str, Any]) -> str:
    """The resource plan that it counts for, as an absolute path."""
    return words(found.get("consumer"))


def user(found: Mapping[str, Any]) -> str:
    """Who submitted it."""
    return words(found.get("submit_user"))


def tag(found: Mapping[str, Any]) -> str:
    """Where it stands in the tree of resource plans: its own word for that, or its plan and user."""
    return words(found.get("tag")) or "/".join(filter(None, (consumer(found).rstrip("/"), user(found))))


def workers(found: Mapping[str, Any]) -> int:
    """Workers that it asked for, at least 1."""
    return int(number(found.get("task12n_num")) or 1)


def executors(found: Mapping[str, Any]) -> int | None:
    """Executors that it has now, or None."""
    listed = found.get("task12n")
    if not isinstance(listed, list):
        return None
    return sum(not (isinstance(one, dict) and states.is_terminal(str(one.get("state", "")))) for one in listed)


def is_pack(found: Mapping[str, Any]) -> bool:
    """Whether it is the parent of a pack of jobs that share a device."""
    return found.get("is_packing") in (True, "true", "True")


def pack(found: Mapping[str, Any]) -> str:
    """Id of the pack that it belongs to, "" for none."""
    return words(found.get("pack_id"))


def addresses(found: Mapping[str, Any]) -> list[str]:
    """IP addresses of its pods."""
    return [words(kernel.get("ip")) for kernel in objects(found.get("kernels"))]


def requested(found: Mapping[str, Any]) -> Resources:
    """What it asked for as a whole: its driver, if it has one, and all its workers."""
    suffix = "_limit" if is_pack(found) else ""
    return _request(found.get("task0_resreq"), suffix) + _request(found.get("task12n_resreq"), suffix).times(
        workers(found))


def used(found: Mapping[str, Any]) -> Resources:
    """What the server says that it uses now."""
    return Resources(*(number(found.get(name)) for _, name in _COUNTED.values()))


def held(found: Mapping[str, Any]) -> Resources:
    """What it has while it runs: what it uses, where the server tells that, else what it asked for."""
    return Resources(*(asked if now is None else now for now, asked in zip(used(found), requested(found), strict=True)))


def _request(text: Any, suffix: str) -> Resources:
    """The amounts in `ncpus=1,ngpus=0,mem=4096`. Parts that are none are passed over."""
    pairs = (part.partition("=") for part in words(text).split(","))
    amounts = {name.strip(): number(value) for name, _, value in pairs}
    return Resources(*(amounts.get(name + suffix, amounts.get(name)) for name, _ in _COUNTED.values()))


def _time(found: Mapping[str, Any], name: str) -> Any:
    """Seconds; as it stands where it is no number, for it may be an ISO time; None for 0."""
    value = found.get(name)
    seconds = number(value)
    return (value or None) if seconds is None else (seconds or None)


def _sum(values: tuple[float | None, float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
