"""An application, as the scheduler's engine describes it. A value that the server leaves out is None, "" or empty."""

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
#: Resource of a job → its name in `task0_resreq` and `task12n_resreq`, and the field for the amount in use.
_COUNTED = {"cpu": ("ncpus", "used_cpu"), "gpu": ("ngpus", "used_gpu"), "mem": ("mem", "used_mem")}
_RUNNING = frozenset({states.LAUNCHING, states.RUNNING, states.RECOVERING})
_PENDING = frozenset({states.NEW, states.SUBMITTED, states.PENDING_JOB, states.PENDING, states.RECOVERING, "PENDING"})
#: Columns of --app-analyze.
BUCKETS = ("PENDING", "RUNNING", "FINISHED", "KILLED", "ERROR", "UNKNOWN")


class ApplicationResources(NamedTuple):
    """An amount of each resource; `mem` in MB. None: the server does not give the amount."""

    cpu: float | None = None
    gpu: float | None = None
    mem: float | None = None

    def __add__(self, other: object) -> ApplicationResources:
        """Return the sum. An amount that one side does not give counts as 0; None if neither side gives it."""
        assert isinstance(other, ApplicationResources)
        return ApplicationResources(*(_sum(pair) for pair in zip(self, other, strict=True)))

    def times(self, count: float) -> ApplicationResources:
        """Return `count` times these amounts."""
        return ApplicationResources(*(None if value is None else value * count for value in self))


def identity(found: Mapping[str, Any]) -> str:
    """Return the id, "" for none."""
    return words(found.get(wire.ID))


def state(found: Mapping[str, Any]) -> str:
    """Return the state on the wire; SUBMITTED for the empty state right after submission."""
    return words(found.get(wire.STATE)) or states.SUBMITTED


def is_active(found: Mapping[str, Any]) -> bool:
    """Return whether the application is pending or running. A state outside the contract is neither."""
    return state(found) in states.ACTIVE


def is_running(found: Mapping[str, Any]) -> bool:
    """Return whether the application holds the resources that it requested."""
    return state(found) in _RUNNING


def bucket(found: Mapping[str, Any]) -> str:
    """Return the column of --app-analyze that counts the application."""
    known = state(found)
    if known in _PENDING:
        return "PENDING"
    if known in _RUNNING:
        return "RUNNING"
    return known if known in states.TERMINAL else "UNKNOWN"


def submitted(found: Mapping[str, Any]) -> Any:
    """Return the time of submission in epoch seconds (or as the server's text, see `_time`), or None."""
    return _time(found, "submit_time")


def started(found: Mapping[str, Any]) -> Any:
    """Return the start time in epoch seconds (or as the server's text, see `_time`), or None."""
    return _time(found, "start_time")


def ended(found: Mapping[str, Any]) -> Any:
    """Return the end time in epoch seconds (or as the server's text, see `_time`), or None."""
    return _time(found, "end_time")


def kind(found: Mapping[str, Any]) -> str:
    """Return the type: Training, Notebook, Inference, or the server's own word."""
    return words(found.get("type"))


def consumer(found: Mapping[str, Any]) -> str:
    """Return the resource plan that the application counts for, as an absolute path."""
    return words(found.get("consumer"))


def user(found: Mapping[str, Any]) -> str:
    """Return the user who submitted the application."""
    return words(found.get(wire.SUBMIT_USER))


def tag(found: Mapping[str, Any]) -> str:
    """Return the application's position in the tree of resource plans: its tag, or else its plan and user."""
    return words(found.get("tag")) or "/".join(filter(None, (consumer(found).rstrip("/"), user(found))))


def workers(found: Mapping[str, Any]) -> int:
    """Return the number of requested workers, at least 1."""
    return int(number(found.get(wire.TASK12N_NUM)) or 1)


def executors(found: Mapping[str, Any]) -> int | None:
    """Return the number of current executors, or None if the server does not list them."""
    listed = found.get("task12n")
    if not isinstance(listed, list):
        return None
    return sum(not (isinstance(one, dict) and states.is_terminal(str(one.get("state", "")))) for one in listed)


def is_pack(found: Mapping[str, Any]) -> bool:
    """Return whether the application is the parent of a pack of jobs that share a device."""
    return found.get("is_packing") in (True, "true", "True")


def pack(found: Mapping[str, Any]) -> str:
    """Return the id of the application's pack, "" for none."""
    return words(found.get(wire.PACK_ID))


def addresses(found: Mapping[str, Any]) -> list[str]:
    """Return the IP addresses of the application's pods."""
    return [words(kernel.get("ip")) for kernel in objects(found.get("kernels"))]


def requested(found: Mapping[str, Any]) -> ApplicationResources:
    """Return the whole request: that of the driver, if there is one, and of all workers."""
    suffix = "_limit" if is_pack(found) else ""
    return _request(found.get("task0_resreq"), suffix) + _request(found.get("task12n_resreq"), suffix).times(
        workers(found))


def request(found: Mapping[str, Any]) -> str:
    """Return the request of the workers as the original client shows it: `num=2,ngpus=1,mem=4G,ncpus=1`, with `n/a`
    for a value that the server does not give."""
    one = _request(found.get("task12n_resreq"), "_limit" if is_pack(found) else "")
    amounts = {
        "ngpus": None if one.gpu is None else f"{one.gpu:g}",
        "mem": None if one.mem is None else f"{one.mem / 1024:g}G" if one.mem >= 1024 else f"{one.mem:g}M",
        "ncpus": None if one.cpu is None else f"{one.cpu:g}",
    }
    return ",".join([f"num={workers(found)}", *(f"{name}={value or 'n/a'}" for name, value in amounts.items())])


def used(found: Mapping[str, Any]) -> ApplicationResources:
    """Return the amounts that the application uses now, as the server reports them."""
    return ApplicationResources(*(number(found.get(name)) for _, name in _COUNTED.values()))


def held(found: Mapping[str, Any]) -> ApplicationResources:
    """Return the amounts that a running application holds: those in use if the server reports them, else the
    request."""
    pairs = zip(used(found), requested(found), strict=True)
    return ApplicationResources(*(asked if now is None else now for now, asked in pairs))


def _request(text: Any, suffix: str) -> ApplicationResources:
    """Return the amounts in `ncpus=1,ngpus=0,mem=4096`. Parts that are not amounts are skipped."""
    pairs = (part.partition("=") for part in words(text).split(","))
    amounts = {name.strip(): number(value) for name, _, value in pairs}
    return ApplicationResources(*(amounts.get(name + suffix, amounts.get(name)) for name, _ in _COUNTED.values()))


def _time(found: Mapping[str, Any], name: str) -> Any:
    """Return a time in seconds; None for 0. Text that is not a number is returned unchanged, because it may be an ISO
    time."""
    value = found.get(name)
    seconds = number(value)
    return (value or None) if seconds is None else (seconds or None)


def _sum(values: tuple[float | None, float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
