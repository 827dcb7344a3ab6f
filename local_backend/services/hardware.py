"""Hardware specifications: what one worker gets, in the form of WMLA's `hardwareSpec`. Some are predefined; teams keep
their own beside them, with their versions."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from local_backend.errors import Conflict, Invalid
from local_backend.runtime import needs
from local_backend.scheduler.model import Machine
from local_backend.services.access import Caller
from local_backend.services.base import Base, SupervisorCalls
from local_backend.services.team import TeamObjects
from local_backend.store import team_objects
from local_backend.store.team_objects import HARDWARE, NewVersion, TeamObjectRow
from local_backend.submit import words
from local_backend.submit.catalogue import BY_NAME
from local_backend.submit.hardware_keys import check_keys, remarks
from local_backend.submit.resources import resources

#: The most characters of a specification as JSON.
_LONGEST = 20_000


@dataclass(frozen=True)
class HardwareSpecification:
    """A hardware specification. `row` is None for a predefined one."""

    name: str
    description: str
    spec: dict[str, Any]
    row: TeamObjectRow | None = None
    #: Why no job with it can run on this machine; None if it can.
    lack: str | None = None


@dataclass(frozen=True)
class HardwareDraft:
    """A hardware specification as a client sent it. `shared` None leaves the list of users."""

    name: str
    spec: Mapping[str, Any]
    description: str = ""
    shared: Sequence[str] | bool | None = None


def _of(memory: str = "", **gpu: object) -> dict[str, Any]:
    return {"nodes": {"num_nodes": 1, "gpu": gpu, **({"mem": {"size": memory}} if memory else {})}}


#: One slot is the smallest unit that jobs get, so sizes without a GPU differ in memory alone.
PREDEFINED = (
    HardwareSpecification("XS", "1 CPU slot, 2 GiB of memory", _of("2g", num_gpu=0)),
    HardwareSpecification("S", "1 CPU slot, 4 GiB of memory", _of("4g", num_gpu=0)),
    HardwareSpecification("M", "1 CPU slot, 8 GiB of memory", _of("8g", num_gpu=0)),
    HardwareSpecification("L", "1 CPU slot, 16 GiB of memory", _of("16g", num_gpu=0)),
    HardwareSpecification("GPU-HALF", "half of a GPU, shared with another job", _of(num_gpu=0.5)),
    HardwareSpecification("GPU-SLICE", "1 MIG slice of any profile", _of(num_gpu=1, gpu_profile="slice")),
    HardwareSpecification("GPU-1", "1 GPU", _of(num_gpu=1)),
    HardwareSpecification("GPU-2", "2 GPUs", _of(num_gpu=2)),
    HardwareSpecification("GPU-4", "4 GPUs", _of(num_gpu=4)),
)
_BY_NAME = {one.name: one for one in PREDEFINED}


@dataclass(frozen=True)
class HardwareService:
    """Operations on hardware specifications."""

    base: Base
    supervisor: SupervisorCalls

    @property
    def objects(self) -> TeamObjects:
        """The operations that all shared objects have."""
        return TeamObjects(self.base.database, HARDWARE)

    def all(self, caller: Caller) -> list[HardwareSpecification]:
        """Return the predefined specifications, and those that the caller may use."""
        return [self._shown(one) for one in (*PREDEFINED, *map(_of_row, self.objects.visible(caller)))]

    def find(self, caller: Caller, name: str, version: int | None = None) -> HardwareSpecification:
        """Return a specification by NAME or OWNER/NAME. Raises NotFound (`hardware.not_found`)."""
        known = _BY_NAME.get(name)
        return self._shown(_of_row(self.objects.find(caller, name, version)) if known is None else known)

    def versions(self, caller: Caller, name: str) -> list[HardwareSpecification]:
        """Return all versions of a specification, newest first. Raises NotFound (`hardware.not_found`)."""
        if name in _BY_NAME:
            return [self._shown(_BY_NAME[name])]
        return [self._shown(_of_row(row)) for row in self.objects.versions(caller, name)]

    def numbered(self, caller: Caller, number: int, version: int) -> HardwareSpecification:
        """Return a saved specification by its number. Raises NotFound (`hardware.not_found`)."""
        return _of_row(self.objects.numbered(caller, number, version))

    def save(self, caller: Caller, draft: HardwareDraft) -> HardwareSpecification:
        """Store a specification, or a new version of it. Raises Invalid (`hardware.invalid`, `submission.hardware`),
        Conflict (`hardware.predefined`), NotFound and Denied for the name of another user, OverQuota."""
        with self.base.recorded(caller, "hardware.save", draft.name) as record:
            if draft.name in _BY_NAME:
                raise Conflict("hardware.predefined", f"{draft.name} is predefined and cannot be changed; use another "
                               f"name")
            self.objects.mine(caller, draft.name)
            self.objects.checked_text("description", draft.description)
            shared = self.objects.checked_shared(draft.shared)
            new = NewVersion(draft.description.strip(), {"spec": checked(draft.spec)})
            row = self.base.database.write(lambda c: self.objects.save(c, caller, draft.name, shared, new))
            record.about.append(row.label)
        return self._shown(_of_row(row))

    def remove(self, caller: Caller, name: str) -> None:
        """Delete a specification with all versions. Raises NotFound (`hardware.not_found`), Denied
        (`hardware.of_another_user`), Conflict (`hardware.predefined`, or `hardware.in_use`: an experiment uses it)."""
        with self.base.recorded(caller, "hardware.delete", name):
            if name in _BY_NAME:
                raise Conflict("hardware.predefined", f"{name} is predefined and cannot be deleted")
            row = self.objects.find(caller, name)
            self.objects.check_owner(caller, row)

            def work(connection: Connection) -> None:
                used = self.objects.use_of(connection, caller, row)
                if used is not None:
                    raise Conflict("hardware.in_use", used)
                team_objects.remove(connection, row.number)

            self.base.database.write(work)

    def _shown(self, one: HardwareSpecification) -> HardwareSpecification:
        """Return a specification, and whether this machine has what it names."""
        return replace(one, lack=_lack(one.spec, self.supervisor.machine))


#: Keys of a specification that names a saved one, which only a submission may do.
_BY_REFERENCE = frozenset({"id", "href", "name"})


def checked(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with its `nodes`. Raises Invalid."""
    if "nodes" not in spec and _BY_REFERENCE & spec.keys():
        raise Invalid("hardware.invalid", "spec: the specification refers to another one; write its `nodes` instead")
    found = dict(spec) if "nodes" in spec else {"nodes": dict(spec)}
    try:
        size = len(json.dumps(found, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise Invalid("hardware.invalid", "spec: the specification is not a JSON object") from None
    if size > _LONGEST:
        raise Invalid("hardware.invalid", f"spec: more than {_LONGEST} characters of JSON")
    check_keys(found)
    remarks(found)  # raises for wrong values, also of keys without an effect
    line = words.read("--exec-start PyTorch", None).line
    resources(line, BY_NAME["distPyTorch"], {}, found, None)
    return found


def with_slice(spec: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Return a specification that names a MIG slice of this profile."""
    found = copy.deepcopy(dict(spec)) or {"nodes": {}}
    gpu = found["nodes"].get("gpu") or {}
    found["nodes"]["gpu"] = {**gpu, "gpu_profile": "slice", "mig_profile": profile, "num_gpu": gpu.get("num_gpu") or 1}
    return found


def _of_row(row: TeamObjectRow) -> HardwareSpecification:
    return HardwareSpecification(row.name, row.description, row.content["spec"], row)


def _lack(spec: Mapping[str, Any], machine: Machine) -> str | None:
    line = words.read("--exec-start distPyTorch", None).line
    try:
        asked = resources(line, BY_NAME["distPyTorch"], {}, dict(spec), machine.memory)
    except Invalid as problem:
        return str(problem)
    return needs.refusal(asked, machine, "", False)
