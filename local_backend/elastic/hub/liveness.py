"""Detection of workers that hang. The end of a connection or of a process shows a dead worker at once. This module
finds workers that live, send nothing and keep the others waiting. Such a worker is stopped, swapped out, in an endless
loop, or in a collective that never ends.

Pure: the caller passes the time, in seconds of a monotonic clock. A false alarm kills a healthy worker. So a worker
that may be waiting for another worker does not count as hung. Nor does a worker that runs the user's callbacks and
answers pings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from local_backend.elastic.hub.events import (
    Applied,
    AtBoundary,
    Entered,
    Event,
    Finished,
    Hung,
    Impatient,
    Kill,
    Left,
    Send,
    Stepped,
    TaskDone,
)
from local_backend.elastic.hub.membership import Stage
from local_backend.elastic.hub.state import HubState, Phase

#: A step may take this many times the median step time.
PATIENCE = 10
#: Step times to remember; step times needed for a median; seconds that a step may take before that.
STEPS, ENOUGH, UNKNOWN = 50, 3, 600.0
#: Seconds for the answer to a ping, from a worker that may be in user code; seconds of silence before a ping.
ANSWER, SILENCE = 30.0, 10.0
#: Seconds from the start of a process to its connection; seconds from leaving to the end of the process.
CONNECTING, LEAVING = 60.0, 10.0
#: Seconds to wait for late workers of the first generation; at least this many loading times of its first member.
GATHERING, LOADS = 10.0, 3

#: Phases in which a worker keeps others waiting; the phase that may take any time.
BUSY, FREE = ("computing", "applying", "loading"), "callbacks"

Consequence = Event | Send | Kill


class Liveness:
    """Watch over all workers. `heard` and `ponged` take reports, `check` returns actions, `due` the next check."""

    def __init__(self, minimum: float = 5.0) -> None:
        """Start without reports. `minimum`: seconds without progress before a worker may count as hung."""
        self._minimum = minimum
        #: When each worker last sent anything, and last reported by itself; when it was pinged, if an answer is due.
        self._heard: dict[int, float] = {}
        self._reported: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        #: Time of each worker's last answer to a ping, and its phase at that time.
        self._answers: dict[int, tuple[float, str]] = {}
        #: Newest step that each worker has computed.
        self._steps: dict[int, int] = {}
        #: Stage of each worker, and since when; when it began to load its data; when the first worker was ready, and
        #: its loading time in seconds.
        self._stages: dict[int, tuple[Stage, float]] = {}
        self._loading: dict[int, float] = {}
        self._ready: tuple[float, float] | None = None
        #: Time of the last progress; start of the present investigation; its generation, phase and epoch.
        self._still = self._since = 0.0
        self._where: object = None
        #: Seconds per step and shard; newest commit and when it was seen; whether this generation has made that commit.
        self._paces: deque[float] = deque(maxlen=STEPS)
        self._committed: tuple[int, float] | None = None
        self._settled = False
        self._next: float | None = None

    def heard(self, event: Event, now: float) -> None:
        """Take note of an event for the hub."""
        worker = getattr(event, "worker", None)
        if worker is None:
            return
        self._heard[worker] = self._reported[worker] = now
        if isinstance(event, Stepped):
            self._steps[worker] = event.step
        elif isinstance(event, Entered):
            self._steps[worker] = event.applied - 1
        if isinstance(event, (Stepped, Applied, Entered, AtBoundary, TaskDone, Finished, Left)):
            self._still = self._since = now

    def ponged(self, worker: int, phase: str, now: float) -> None:
        """Take note of a worker's answer to a ping. `phase` is the activity of its main thread."""
        self._heard[worker] = now
        self._answers[worker] = now, phase
        self._asked.pop(worker, None)

    def resumed(self, now: float) -> None:
        """Restart all time limits after the hub itself was held up: it has not read the messages of that time yet."""
        self._still = self._since = now
        self._asked.clear()
        self._heard = dict.fromkeys(self._heard, now)
        self._stages = {worker: (stage, now) for worker, (stage, _) in self._stages.items()}
        self._committed = None
        self._next = now + self._minimum

    def due(self, now: float) -> float | None:
        """Return the time of the next `check` if no event comes before; None if no worker needs watching."""
        return None if self._next is None else max(now, self._next)

    def check(self, state: HubState, now: float) -> list[Consequence]:
        """Return the actions and events that are due now: pings, hung workers, kills, the end of gathering."""
        if self._next is not None and now > self._next + self._minimum / 2:
            self.resumed(now)
        self._next = None
        if state.phase is Phase.ENDED:
            return []
        self._observe(state, now)
        found = [*self._coming_and_going(state, now), *self._impatient(state, now)]
        entering, training = bool(state.crew.entering), state.phase is Phase.TRAINING
        if state.members and (entering or training):
            found += self._stalled(state, now)
        return found + self._silent(self._watched(state, entering or training), now)

    # --- known facts

    def _observe(self, state: HubState, now: float) -> None:
        crew = state.crew
        for worker, peer in crew.peers.items():
            if worker not in self._stages or self._stages[worker][0] is not peer.stage or worker in state.held:
                self._stages[worker] = peer.stage, now
                if peer.stage is Stage.LOADING:
                    self._loading[worker] = now
                elif peer.stage is Stage.READY and self._ready is None:
                    self._ready = now, now - self._loading.get(worker, now)
        mortal = (
            self._stages, self._heard, self._reported, self._asked, self._answers, self._steps, self._loading,
        )
        for known in mortal:
            for worker in known.keys() - crew.peers.keys():
                del known[worker]
        where = crew.active.number, state.phase, bool(crew.entering), state.epoch
        if where != self._where:
            self._where, self._committed, self._settled = where, None, False
            self._still = self._since = now
        if self._committed is None:
            self._committed = state.committed, now
        elif state.committed > self._committed[0]:
            steps, then = self._committed
            if self._settled and crew.active.counts:
                self._paces.append((now - then) / (state.committed - steps) / max(crew.active.counts))
            self._committed, self._settled = (state.committed, now), True

    def deadline(self, state: HubState) -> float:
        """Return the seconds without progress after which a member counts as hung."""
        if len(self._paces) < ENOUGH:
            return UNKNOWN
        # In the first step of a generation one member may compute all shards.
        shards = max(state.crew.active.counts) if self._settled else state.crew.shards
        return max(self._minimum, PATIENCE * median(self._paces) * shards)

    def _past(self, when: float, now: float) -> bool:
        """Return whether the time `when` has come. If not, schedule a check for that time."""
        if now < when:
            self._next = when if self._next is None else min(self._next, when)
        return now >= when

    def _ask(self, workers: Iterable[int], now: float) -> list[Consequence]:
        """Return pings for the workers that do not owe an answer yet."""
        new = [worker for worker in workers if worker not in self._asked]
        self._asked.update(dict.fromkeys(new, now))
        return [Send(worker, {"op": "ping"}) for worker in new]

    # --- starting and leaving workers

    def _coming_and_going(self, state: HubState, now: float) -> list[Consequence]:
        found: list[Consequence] = []
        for worker, (stage, since) in self._stages.items():
            if stage is Stage.STARTING and self._past(since + CONNECTING, now):
                found.append(Hung(worker, f"was started {CONNECTING:.0f} s ago and has not connected"))
            elif stage is Stage.LEAVING and worker not in state.held and self._past(since + LEAVING, now):
                # Kill the worker again after LEAVING seconds if it still lives.
                self._stages[worker] = stage, now
                self._past(now + LEAVING, now)
                found.append(Kill(worker))
        return found

    def _impatient(self, state: HubState, now: float) -> list[Consequence]:
        """End the wait of the first generation for workers that take much longer than its first member."""
        late = state.crew.at(Stage.STARTING, Stage.WAITING, Stage.LOADING)
        if state.phase is not Phase.GATHERING or self._ready is None or not late or not state.crew.at(Stage.READY):
            return []
        since, took = self._ready
        return [Impatient()] if self._past(since + max(GATHERING, LOADS * took), now) else []

    # --- members that keep each other waiting

    def _stalled(self, state: HubState, now: float) -> list[Consequence]:
        """Ping the suspects at half the deadline. At the deadline use the answers to report workers as hung."""
        limit, suspects = self.deadline(state), self._suspects(state)
        if state.crew.entering:
            limit = max(ANSWER, limit if len(self._paces) >= ENOUGH else 0.0)
        elif len(state.members) == 1:
            # A single member keeps no other worker waiting.
            limit = max(2 * ANSWER, limit)
        if not suspects or not self._past(self._since + limit / 2, now):
            return []
        mute = [worker for worker in suspects if self._phase(worker) is None]
        pings = self._ask(mute, now)
        # Give suspects some time to answer, even if they were pinged late.
        last = max((self._asked[worker] for worker in mute), default=0.0)
        if not self._past(max(self._since + limit, last + limit / 4), now):
            return pings
        accused = mute if mute else self._accused(state, suspects, now)
        seconds = now - self._still
        # Ping the remaining members again if this does not help.
        self._since = now
        self._past(now + limit / 2, now)
        why = "does not answer" if mute else "keeps the other workers waiting"
        return [Hung(worker, f"{why}: no progress for {seconds:.1f} s") for worker in accused]

    def _suspects(self, state: HubState) -> list[int]:
        """Return the members that the others may be waiting for."""
        if state.crew.entering:
            return sorted(state.crew.entering)
        members = [worker for worker in state.members if worker not in state.idle]
        steps = {worker: self._steps.get(worker, -1) for worker in members}
        behind = [worker for worker in members if steps[worker] == min(steps.values())]
        # If no member is behind, all may have switched already and wait for a newcomer.
        return behind if len(set(steps.values())) > 1 else [*behind, *state.crew.called]

    def _phase(self, worker: int) -> str | None:
        """Return the phase in the worker's last answer, None if it has not answered in this investigation."""
        at, phase = self._answers.get(worker, (0.0, ""))
        return phase if at > self._since else None

    def _accused(self, state: HubState, suspects: list[int], now: float) -> list[int]:
        """Return at most one of the suspects, which have all answered. A busy suspect comes first, because others wait
        for it; among equals the suspect whose own last report is oldest."""
        phases = {worker: self._phase(worker) for worker in suspects}
        busy = [worker for worker in suspects if phases[worker] in BUSY]
        if FREE in phases.values() or len(busy) == len(state.members):
            return []
        if state.crew.entering and (busy or now - self._still < UNKNOWN):
            # A member may be finishing a task, or much state may be on its way.
            return []
        return [min(busy or suspects, key=lambda worker: self._reported.get(worker, 0.0))]

    # --- members that may be in user code, which may take any time

    def _watched(self, state: HubState, stalling: bool) -> dict[int, float]:
        """Return worker → seconds for the answer to a ping, for workers whose main thread may take any time."""
        crew = state.crew
        # A worker that imports or loads data may keep its own control thread from answering.
        watched = dict.fromkeys(crew.at(Stage.WAITING, Stage.LOADING), UNKNOWN)
        watched |= dict.fromkeys((*crew.at(Stage.READY), *state.parking), ANSWER)
        if crew.pending is not None and not crew.confirmed:
            watched |= dict.fromkeys(set(crew.pending.members) - crew.formed, ANSWER)
        return watched if stalling else watched | dict.fromkeys(state.members, ANSWER)

    def _silent(self, watched: dict[int, float], now: float) -> list[Consequence]:
        found: list[Consequence] = []
        for worker, limit in sorted(watched.items()):
            if worker in self._asked:
                if self._past(self._asked[worker] + limit, now):
                    found.append(Hung(worker, f"has not answered for {now - self._asked[worker]:.0f} s"))
            elif self._past(self._heard.setdefault(worker, now) + SILENCE, now):
                found += self._ask([worker], now)
                self._past(now + limit, now)
        return found
