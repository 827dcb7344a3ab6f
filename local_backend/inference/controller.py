"""The loop that drives models: it starts the gateway, gives revisions execs, and moves requests between revisions.

Everything that counts is in the rows of models, revisions and execs; the loads of the gateway say the rest. So a server
that is killed at any moment goes on where it was: gateway and kernels do not notice.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from local_backend.errors import BackendError
from local_backend.inference import converging
from local_backend.inference.autoscaler import ScalerMemory, presses, resumed, wanted
from local_backend.inference.control import Model, RevisionLoad, Token
from local_backend.inference.converging import Convergence, KernelsSeen
from local_backend.inference.gateway_session import GatewaySession
from local_backend.inference.profile import ModelProfile, to_profile
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.loop import Backoff, Loop
from local_backend.store import execs, models
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.models import SERVING, STARTING, ModelRow, RevisionRow

_log = logging.getLogger(__name__)
#: Seconds between two looks at models that serve: tokens and reasons change without an event.
_LOOK = 1.0
#: Seconds after which the gateway has certainly reported a request that came before it got a state.
_SETTLED = 0.5
#: Most changes of one model in one turn.
_MOST_STEPS = 10


class ModelChanged(Exception):
    """A call has changed the model meanwhile."""


class ServingWork(Protocol):
    """What the loop needs of the rest of the server."""

    def submit(
        self, model: ModelRow, revision: RevisionRow, profile: ModelProfile, bind: Callable[[Connection, str], None]
    ) -> ExecRow:
        """Submit the exec of a revision. Raises BackendError, BundleLost, and the errors of `bind`."""

    def tokens(self, digests: Set[str]) -> Mapping[str, Token]:
        """Return those of these tokens that are valid, and others that may be used next."""

    def waits(self, exec_id: str) -> str:
        """Return why an exec waits for slots; empty if it does not."""

    def wake(self) -> None:
        """Let the supervisor look at the execs now."""


@dataclass
class _Served:
    """What the loop remembers of one exec of a revision."""

    #: Of the autoscaler.
    memory: ScalerMemory = field(default_factory=ScalerMemory)
    #: When its number of kernels is decided next (monotonic); the last decision.
    scale_at: float = 0.0
    wanted: int | None = None
    #: The number of kernels that it has at least, as it was written last.
    least: int | None = None
    #: Whether a kernel was ready. Of an exec of an earlier server, it is assumed.
    proved: bool = False


@dataclass
class _Failing:
    """Submissions that fail."""

    retry: Backoff = field(default_factory=Backoff)
    not_before: float = 0.0


@dataclass(frozen=True)
class _World:
    """All models with their revisions and the execs of these."""

    rows: list[ModelRow]
    revisions: Mapping[int, list[RevisionRow]]
    execs: Mapping[str, ExecRow]

    def runs(self, row: ModelRow) -> bool:
        """Return whether a model is meant to serve, or has revisions with kernels."""
        return row.started or any(one.state in models.ACTIVE for one in self.revisions[row.number])


class ModelController:
    """Drives the models. Call `start` first and `close` last."""

    def __init__(self, database: Database, work: ServingWork, session: GatewaySession) -> None:
        self._database, self._work = database, work
        self.session = session
        self._served: dict[str, _Served] = {}
        self._failing: dict[tuple[int, int], _Failing] = {}
        self._draining: dict[tuple[str, int], float] = {}
        self._begun = False
        self.loop = Loop("models", self._turn, descriptors=session.descriptors)

    def start(self) -> None:
        """Start the thread. Models of an earlier server go on."""
        self._database.bus.subscribe(self._news)
        self.loop.start()

    def close(self, *, end_gateway: bool = False) -> None:
        """End the thread after its current operation. Kernels go on, and the gateway while models run, unless it is to
        end, too."""
        self._database.bus.unsubscribe(self._news)
        self.loop.stop()
        self.session.leave(end=end_gateway)

    def wake(self) -> None:
        """Look at the models now."""
        self.loop.wake()

    def _news(self) -> None:
        if self._served or self.session.connected:
            self.loop.wake()

    def _turn(self, _ready: Set[int]) -> float | None:
        world = self._database.read(_world)
        if not self._begun:
            now = time.monotonic()
            self._served = {name: _Served(resumed(one.wanted or 0, now), proved=True)
                            for name, one in world.execs.items()}
            self._begun = True
        running = [row for row in world.rows if world.runs(row)]
        soon = self.session.keep(bool(running))
        self.session.hear(self._known_tokens)
        due = [soon] if soon is not None else []
        if running and not self.session.connected:
            due.append(self.session.keep(True) or time.monotonic())  # the gateway may be lost since a moment ago
        for row in running:
            self._converge(row, world)
        world = self._database.read(_world)
        self._served = {name: one for name, one in self._served.items() if name in world.execs}
        due += self._scale_all(world)
        self._push(world)
        if running:
            due.append(time.monotonic() + (_SETTLED / 2 if self._draining else _LOOK))
        return min(due, default=None)

    # --- one model

    def _converge(self, row: ModelRow, world: _World) -> None:
        """Make the revisions of a model what they are meant to be, as far as that is possible now."""
        found = world
        try:
            for _ in range(_MOST_STEPS):
                if not self._step(row, found):
                    return
                found = self._database.read(_world)
                again = next((one for one in found.rows if one.number == row.number), None)
                if again is None:
                    return
                row = again
        except ModelChanged:
            self.loop.wake()
        except SQLAlchemyError:
            raise
        except Exception as problem:
            _log.exception("the model %s failed", row.name)
            self._say(row, f"the server failed while it ran this model ({type(problem).__name__}); its log says why")

    def _step(self, row: ModelRow, world: _World) -> bool:
        """Do what is due for a model. Return whether something has changed."""
        profile = to_profile(json.loads(row.profile))
        rows = world.revisions[row.number]
        seen = {one.number: self._seen(row, one, world) for one in rows}
        change = converging.decide(row, rows, seen, profile)
        if change.states or change.stop or change.traffic is not None:
            self._apply(row, rows, change)
            return True
        submitted = [self._submit(row, one, profile) for one in rows if one.number in change.submit]
        return any(submitted)

    def _seen(self, model: ModelRow, row: RevisionRow, world: _World) -> KernelsSeen:
        if row.exec_id is None:
            return KernelsSeen()
        found, known = world.execs.get(row.exec_id), self._served.get(row.exec_id)
        load = self.session.loads(model.name).get(row.number)
        if known is not None and load is not None and any(one.ready for one in load.kernels):
            known.proved = True
        proved = known is None or known.proved
        if found is None or found.deleted:
            return KernelsSeen(failure="its job was deleted", proved=proved)
        if found.terminal:
            return KernelsSeen(failure=found.message or f"its job ended in state {found.shown_state}", proved=proved)
        return KernelsSeen(True, found.stop_requested, None, proved, load, self._is_drained(model.name, row, load))

    def _is_drained(self, model: str, row: RevisionRow, load: RevisionLoad | None) -> bool:
        since = self._draining.get((model, row.number))
        if since is None or not self.session.reports or time.monotonic() < since + _SETTLED:
            return False
        return load is None or not (load.queued or load.running)

    def _apply(self, row: ModelRow, rows: list[RevisionRow], change: Convergence) -> None:
        """Store the changes of one decision. Raises ModelChanged."""
        by_number = {one.number: one for one in rows}

        def work(connection: Connection) -> None:
            now = models.get(connection, row.name)
            if now is None or (now.started, now.traffic) != (row.started, row.traffic):
                raise ModelChanged
            for number, (state, message) in change.states.items():
                one, values = by_number[number], {"state": state, "message": message}
                if state == STARTING:
                    values["exec_id"] = None
                    if one.exec_id is not None:
                        execs.note(connection, one.exec_id, stop_requested=True, deleted=True)
                if not models.change_revision(connection, one, **values):
                    raise ModelChanged
            stopped = [str(by_number[number].exec_id) for number in change.stop]
            execs.request_stops(connection, stopped, None)
            if change.traffic is not None:
                models.change(connection, row.number, traffic=change.traffic)

        self._database.write(work)
        for number, (state, message) in change.states.items():
            _log.info("revision %d of the model %s is %s%s", number, row.name, state, f": {message}" if message else "")
        if change.stop or STARTING in {state for state, _ in change.states.values()}:
            self._work.wake()

    def _submit(self, model: ModelRow, row: RevisionRow, profile: ModelProfile) -> bool:
        """Give a revision an exec. Return whether it has one now. Raises ModelChanged."""
        failing = self._failing.setdefault((model.number, row.number), _Failing())
        if time.monotonic() < failing.not_before:
            return False

        def bind(connection: Connection, exec_id: str) -> None:
            if not models.change_revision(connection, row, exec_id=exec_id):
                raise ModelChanged

        try:
            made = self._work.submit(model, row, profile, bind)
        except BundleLost:
            self._fail(row, "its files are no longer stored, or have changed; deploy it again")
            return True
        except BackendError as problem:
            if not problem.is_failure and not _may_pass(problem):
                self._fail(row, str(problem))
                return True
            failing.retry.failed(problem)
            failing.not_before = time.monotonic() + failing.retry.pause
            self._say(model, f"revision {row.number} waits: {problem}")
            return False
        self._failing.pop((model.number, row.number), None)
        self._say(model, None)
        self._served[made.id] = _Served()
        self._work.wake()
        return True

    def _fail(self, row: RevisionRow, message: str) -> None:
        self._database.write(lambda c: models.change_revision(c, row, state=models.FAILED, message=message))

    def _say(self, row: ModelRow, message: str | None) -> None:
        if row.message != message:
            self._database.write(lambda c: models.change(c, row.number, message=message))

    # --- number of kernels

    def _scale_all(self, world: _World) -> list[float]:
        """Write how many kernels the revisions need, now and at least. Return when to decide again (monotonic)."""
        due: list[float] = []
        changes: dict[str, tuple[int | None, int]] = {}
        for row in world.rows:
            rows = world.revisions[row.number]
            active = [one for one in rows if one.state in (STARTING, SERVING)]
            if not active:
                continue
            profile = to_profile(json.loads(row.profile))
            seen = {one.number: self._seen(row, one, world) for one in rows}
            for one in active:
                if not seen[one.number].alive or one.exec_id is None:
                    continue
                known = self._served.setdefault(one.exec_id, _Served())
                count = self._needed(one, rows, seen, profile, known)
                count = known.wanted if count is None else count
                if (count, profile.kernel_min) != (known.wanted, known.least):
                    changes[one.exec_id] = count, profile.kernel_min
                due.append(known.scale_at)
        if changes:
            self._database.write(lambda c: [execs.want(c, name, *counts) for name, counts in changes.items()])
            for name, counts in changes.items():
                self._served[name].wanted, self._served[name].least = counts
            self._work.wake()
        return due

    def _needed(
        self, row: RevisionRow, rows: list[RevisionRow], seen: Mapping[int, KernelsSeen], profile: ModelProfile,
        known: _Served,
    ) -> int | None:
        """Return the new number of kernels of a revision; None if it stays."""
        load, now = seen[row.number].load or RevisionLoad(), time.monotonic()
        least = converging.least_kernels(row, rows, seen, profile)
        if now < known.scale_at and not presses(load, profile) and (known.wanted or 0) >= least:
            return None
        known.scale_at = now + profile.schedule_interval
        count, known.memory = wanted(load, profile, known.memory, now)
        count = max(count, least)
        return count if count != known.wanted else None

    # --- the gateway

    def _push(self, world: _World) -> None:
        """Send the present state to the gateway if it has changed."""
        shown = {row.name: self._model(row, world) for row in world.rows if world.revisions[row.number]}
        draining = {(name, one.number) for name, model in shown.items() for one in model.revisions
                    if one.state == "draining"}
        if self.session.push(shown, self._work.tokens):
            now = time.monotonic()
            self._draining = {key: self._draining.get(key, now) for key in draining}

    def _model(self, row: ModelRow, world: _World) -> Model:
        rows = world.revisions[row.number]
        keys, why = {}, {}
        for one in rows:
            found = world.execs.get(one.exec_id or "")
            service = None if found is None or found.deleted else found.workload.service
            if service is not None and found is not None:
                keys[one.number] = service.key
                why[one.number] = one.message or self._work.waits(found.id)
        main = rows[-1].model_json
        metadata: dict[str, Any] = {key: main[key] for key in ("platform", "inputs", "outputs") if main.get(key)}
        return Model(row.name, row.creator, row.shared_with, to_profile(json.loads(row.profile)).limits,
                     converging.for_gateway(row, rows, keys, why), metadata)

    def _known_tokens(self, digests: Set[str]) -> Mapping[str, Token]:
        return self._work.tokens(digests)


def _world(connection: Connection) -> _World:
    rows = models.all_models(connection)
    revisions = models.all_revisions(connection, [row.number for row in rows])
    ids = {one.exec_id for each in revisions.values() for one in each if one.exec_id is not None}
    return _World(rows, revisions, execs.with_ids(connection, ids))


def _may_pass(problem: BackendError) -> bool:
    """Return whether the same submission may succeed later: a quota, or too many calls."""
    return problem.code.startswith(("quota.", "load."))


