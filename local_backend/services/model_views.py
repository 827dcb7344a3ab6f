"""Models as answers show them: their rows, and what gateway and kernels say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from dlicmd.contract.secret import MASK, looks_secret
from local_backend.inference.control import RevisionLoad
from local_backend.inference.converging import shown_state
from local_backend.inference.profile import ModelProfile, to_profile
from local_backend.inference.serving_history import LoadPoint
from local_backend.services.access import Caller
from local_backend.store.models import DRAINING, FAILED, SERVING, STARTING, ModelRow, RevisionRow

#: Begins the id of the job that serves a revision, before the name of the model.
_JOB = "edi-"


@dataclass(frozen=True)
class GatewayAddress:
    """Where the gateway takes requests. `local` is the Unix socket for the server."""

    scheme: str
    host: str
    port: int
    grpc_port: int | None
    local: str


@dataclass(frozen=True)
class ServingRates:
    """What a revision did per second in the last seconds."""

    requests: float = 0.0
    bytes: float = 0.0


class ServingFacts(Protocol):
    """What the controller knows of gateway and kernels at present."""

    def loads(self, model: str) -> Mapping[int, RevisionLoad]:
        """Return the last loads of the revisions of a model."""

    def rates(self, model: str, number: int) -> ServingRates:
        """Return what a revision did per second in the last seconds."""

    def points(self, model: str) -> Sequence[LoadPoint]:
        """Return what a model did in the last minutes, oldest first."""

    def latency(self, model: str) -> tuple[float | None, float | None]:
        """Return the seconds below which half and 99 % of the latencies of the last minute were; None without one."""

    def address(self) -> GatewayAddress | None:
        """Return where the gateway takes requests; None while no gateway runs."""


#: What only the user of an exec sees of the lineage of a model that was made of it.
_OF_THE_EXEC = ("args", "data", "folder")


def seen_origin(origin: Mapping[str, Any], caller: Caller, creator: str) -> dict[str, Any]:
    """Return what a user sees of the lineage of a model. `creator` is the user whose data it is from, if the lineage
    names no user."""
    if caller.admin or caller.name == origin.get("user", creator):
        return dict(origin)
    return {key: value for key, value in origin.items() if key not in _OF_THE_EXEC}


def seen_revision(row: RevisionRow, caller: Caller, owner: str) -> RevisionRow:
    """Return a revision as a user sees it: users that a model is shared with see no secrets of its kernels."""
    if row.source is not None:
        row = replace(row, source=json.dumps(seen_origin(json.loads(row.source), caller, row.creator)))
    if caller.admin or caller.name == owner:
        return row
    value = row.model_json
    for key, name in (("mk_environments", "name"), ("attributes", "key")):
        if value.get(key):
            value[key] = _masked(value[key], name)
    return replace(row, description=json.dumps(value))


def seen_profile(text: str, caller: Caller, owner: str) -> str:
    """Return a profile as a user sees it, in the same way."""
    found = json.loads(text)
    kernel = found.get("kernel") or {}
    if caller.admin or caller.name == owner or not kernel.get("envs"):
        return text
    return json.dumps(found | {"kernel": kernel | {"envs": _masked(kernel["envs"], "name")}})


def _masked(pairs: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    return [{**one, "value": MASK} if one.get("value") and looks_secret(str(one.get(name))) else {**one}
            for one in pairs]


def job_id(model: str, exec_id: str) -> str:
    """Return the id of the job that serves a revision, as people and kernels see it."""
    return f"{_JOB}{model}-{exec_id}"


@dataclass(frozen=True)
class ServiceInstance:
    """The service of one revision with its load."""

    row: RevisionRow
    load: RevisionLoad
    rates: ServingRates


class ModelView:
    """One model as the server sees it now."""

    def __init__(self, row: ModelRow, revisions: Sequence[RevisionRow], facts: ServingFacts) -> None:
        self.row = row
        self.revisions = revisions
        self.loads = facts.loads(row.name)
        self._facts = facts

    @cached_property
    def main(self) -> RevisionRow:
        """The revision that stands for the model: the newest one with requests, or else the newest one."""
        with_requests = [one for one in self.revisions if self.row.weights.get(one.number)]
        return (with_requests or self.revisions)[-1]

    @property
    def profile(self) -> ModelProfile:
        """What the server acts on, of the profile."""
        return to_profile(json.loads(self.row.profile))

    @property
    def state(self) -> str:
        """`serving`, `starting`, `failed` or `stored`."""
        return shown_state(self.row, self.revisions)

    @property
    def message(self) -> str:
        """Why the model does not serve, or not as it is meant to; empty if there is nothing to say."""
        said = [one.message for one in reversed(self.revisions) if one.message and one.state in (FAILED, STARTING)]
        return self.row.message or (said[0] if said else "")

    @property
    def address(self) -> GatewayAddress | None:
        """Where the model takes requests; None while it is stopped."""
        return self._facts.address() if self.state in (SERVING, STARTING) else None

    @property
    def latency(self) -> tuple[float | None, float | None]:
        """The seconds below which half and 99 % of the latencies of the last minute were; None without an answer."""
        return self._facts.latency(self.row.name)

    @property
    def points(self) -> Sequence[LoadPoint]:
        """What the model did in the last minutes, oldest first."""
        return self._facts.points(self.row.name)

    @property
    def instances(self) -> list[ServiceInstance]:
        """The services of the revisions that have kernels, or get them."""
        return [ServiceInstance(one, self.loads.get(one.number, RevisionLoad()),
                                self._facts.rates(self.row.name, one.number))
                for one in self.revisions if one.state in (STARTING, SERVING, DRAINING) and one.exec_id]

    def ready(self, number: int) -> int:
        """Return the number of kernels of a revision that take requests."""
        load = self.loads.get(number)
        return 0 if load is None else sum(one.ready and not one.leaving for one in load.kernels)

    @property
    def shared(self) -> Any:
        """The users that the model is shared with; True for all users."""
        found = self.row.shared_with
        return True if found is True else list(found)
