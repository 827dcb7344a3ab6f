"""Everything that the server knows about an exec: its row, its files, and the supervisor's view of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from dlicmd.contract import states, wire
from local_backend import run_values
from local_backend.files import full_disk
from local_backend.runtime import needs
from local_backend.runtime.active import LiveValues
from local_backend.runtime.paths import ExecPaths
from local_backend.scheduler import reasons
from local_backend.scheduler.model import Reason
from local_backend.services.executors import executors, running
from local_backend.store.execs import ExecRow

#: States in which an exec has slots, or is about to have them again.
HAS_SLOTS = frozenset({states.RUNNING, states.RECOVERING})
#: Maximum number of main metrics of an exec.
MOST_MAIN = 8
#: Prefix of the id of a pack.
PACK = "pack-"


def slots_of(row: ExecRow) -> list[str]:
    """Return the ids of the slots that an exec holds."""
    return json.loads(row.slots) if row.slots and row.state in HAS_SLOTS else []


def wanted_slots(row: ExecRow) -> int:
    """Return the number of slots that an exec uses if they are free."""
    if row.pinned is not None:
        return row.pinned
    each, _, most = needs.slots(row.workload.resources)
    return each * most


def is_parked(row: ExecRow) -> bool:
    """Return whether an exec is running without a slot. Its training pauses until it gets one."""
    return row.state in HAS_SLOTS and row.elastic and not slots_of(row)


def pack_id(row: ExecRow) -> str:
    """Return the id of the application for the pack of an exec, empty without a pack. A pack belongs to one user."""
    pack = row.workload.resources.pack
    return f"{PACK}{row.user}:{pack}" if pack else ""


@dataclass(frozen=True)
class Sight:
    """Functions by which views find facts that are not in the row."""

    paths: Callable[[ExecRow], ExecPaths]
    reason: Callable[[str], Reason | None]
    live: Callable[[str], LiveValues | None]
    consumer: Callable[[ExecRow], str]
    kind: Callable[[ExecRow], str]


class ExecView:
    """One exec as the server sees it now. Each property is computed once, when it is needed."""

    def __init__(self, row: ExecRow, sight: Sight) -> None:
        self.row = row
        self._sight = sight

    @cached_property
    def paths(self) -> ExecPaths:
        """The files of the exec."""
        return self._sight.paths(self.row)

    @cached_property
    def _live(self) -> LiveValues | None:
        return None if self.row.terminal else self._sight.live(self.row.id)

    @cached_property
    def progress(self) -> Mapping[str, Any]:
        """The progress that the program reported last."""
        if self._live is not None:
            return self._live.progress
        return json.loads(self.row.progress) if self.row.progress else {}

    @property
    def main_metrics(self) -> Mapping[str, Any]:
        """The last values of the most important metrics, with their steps."""
        return dict(islice((self.progress.get(wire.LAST_METRICS) or {}).items(), MOST_MAIN))

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """The last values of the metrics; while the exec runs, those that its program reported last."""
        return run_values.metrics(self.progress)

    @cached_property
    def parameters(self) -> Mapping[str, str | int | float | bool]:
        """The parameters of the program."""
        return run_values.parameters(self.row.workload.program)

    @cached_property
    def reason(self) -> Reason | None:
        """Why the exec is pending or parked, or rests; None when it runs or is over."""
        if self.row.rested is not None and not self.row.terminal:
            return reasons.resting(self.row.rested)
        if self.row.idle and not self.row.terminal:
            return reasons.without_requests()
        pending = self.row.state in (states.SUBMITTED, states.PENDING) or is_parked(self.row)
        return self._sight.reason(self.row.id) if pending else None

    @cached_property
    def disk_trouble(self) -> str | None:
        """A sentence when the disk of an unfinished exec is full."""
        return None if self.row.terminal else full_disk(self.paths.state)

    @cached_property
    def has_result(self) -> bool:
        """Whether the model folder contains anything."""
        return holds_anything(self.paths.model)

    @cached_property
    def consumer(self) -> str:
        """The path of the resource plan that the exec counts for."""
        return self._sight.consumer(self.row)

    @cached_property
    def kind(self) -> str:
        """The kind of slot that the exec requests."""
        return self._sight.kind(self.row)

    @cached_property
    def executors(self) -> dict[int, bool]:
        """Number of an executor → whether it is running."""
        live = set(self.running_executors)
        return {number: number in live for number in executors(self.row, self.paths)}

    @cached_property
    def running_executors(self) -> list[int]:
        """Numbers of the executors that are running."""
        return running(self.row, self.paths, self._live)


def holds_anything(folder: Path) -> bool:
    """Return whether there is anything in a folder, False when it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return any(found)
    except OSError:
        return False
