"""Who hangs. A death is seen at once, by the end of a connection or of a process; this is for workers that live, say
nothing and keep the others waiting: stopped, swapped out, in an endless loop, in a collective that will never end.

Pure: whoever asks says what time it is (seconds of a monotonic clock). A wrong accusation costs a worker its life, so
nobody is accused who may be waiting for somebody else, or who runs the user's own callbacks and answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from local_backend.elastic.events import (
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
from local_backend.elastic.hub_state import Phase, State
from local_backend.elastic.membership import Stage

#: A step may take this many times the usual.
PATIENCE = 10
#: Steps that are remembered, how many of them make a usual one, and how long a step may take before, in seconds.
STEPS, ENOUGH, UNKNOWN = 50, 3, 600.0
#: Seconds for the answer to a ping, from a worker that may be in user code; and the silence after which it is pinged.
ANSWER, SILENCE = 30.0, 10.0
#: Seconds from the start of a process to its connection, and from leaving to the end of the process.
CONNECTING, LEAVING = 60.0, 10.0
#: Seconds that the first generation waits for the others, or this many times what its first member took to load.
GATHERING, LOADS = 10.0, 3

#: Phases in which a worker keeps others waiting, and the one that may take as long as it likes.
BUSY, FREE = ("computing", "applying", "loading"), "callbacks"

Consequence = Event | Send | Kill


class Liveness:
    """Told all that is heard (`heard`, `ponged`); says what is to be done (`check`) and when to look next (`due`)."""

    def __init__(self, minimum: float = 5.0) -> None:
        """`minimum`: seconds without progress below which nobody is accused."""
        self._minimum = minimum
        #: When each worker last said anything, and last reported by itself; when it was pinged, if it owes an answer.
        self._heard: dict[int, float] = {}
        self._reported: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        #: What each worker was doing when it last answered, and when that was.
        self._answers: dict[int, tuple[float, str]] = {}
        #: The newest step that each worker has computed.
        self._steps: dict[int, int] = {}
        #: What each worker is, since when; and the time that the first one took to load its data sets.
        self._stages: dict[int, tuple[Stage, float]] = {}
        self._loading: dict[int, float] = {}
        self._ready: tuple[float, float] | None = None
        #: Since when nothing has got on, since when that is looked into, and in which generation and phase.
        self._still = self._since = 0.0
        self._where: object = None
        #: Seconds per step and shard; the newest commit and when it was seen; whether it is one of the generation.
        self._paces: deque[float] = deque(maxlen=STEPS)
        self._committed: tuple[int, float] | None = None
        self._settled = False
        self._next: float | None = None

    def heard(self, event: Event, now: float) -> None:
        """An event that the hub is told."""
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
        """A worker has answered a ping; `phase` is what its main thread does."""
        self._heard[worker] = now
        self._answers[worker] = now, phase
        self._asked.pop(worker, None)

    def resumed(self, now: float) -> None:
        """The hub itself was held up: what workers said meanwhile has not been heard, so all begins anew."""
        self._still = self._since = now
        self._asked.clear()
        self._heard = dict.fromkeys(self._heard, now)
        self._stages = {worker: (stage, now) for worker, (stage, _) in self._stages.items()}
        self._committed = None
        self._next = now + self._minimum

    def due(self, now: float) -> float | None:
        """When to `check` again even if nothing is heard; None when there is nobody to watch."""
        return None if self._next is None else max(now, self._next)

    def check(self, state: State, now: float) -> list[Consequence]:
        """What is to be done now: workers to ping, to give up, to kill."""
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

    # --- what is known

    def _observe(self, state: State, now: float) -> None:
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

    def deadline(self, state: State) -> float:
        """Seconds without progress after which somebody hangs."""
        if len(self._paces) < ENOUGH:
            return UNKNOWN
        # In the first step of a generation one member may compute all shards.
        shards = max(state.crew.active.counts) if self._settled else state.crew.shards
        return max(self._minimum, PATIENCE * median(self._paces) * shards)

    def _past(self, when: float, now: float) -> bool:
        """Whether that time has come; else it will be looked at then."""
        if now < when:
            self._next = when if self._next is None else min(self._next, when)
        return now >= when

    def _ask(self, workers: Iterable[int], now: float) -> list[Consequence]:
        """Pings for those that do not owe an answer already."""
        new = [worker for worker in workers if worker not in self._asked]
        self._asked.update(dict.fromkeys(new, now))
        return [Send(worker, {"op": "ping"}) for worker in new]

    # --- before and after taking part

    def _coming_and_going(self, state: State, now: float) -> list[Consequence]:
        found: list[Consequence] = []
        for worker, (stage, since) in self._stages.items():
            if stage is Stage.STARTING and self._past(since + CONNECTING, now):
                found.append(Hung(worker, f"was started {CONNECTING:.0f} s ago and has not connected"))
            elif stage is Stage.LEAVING and worker not in state.held and self._past(since + LEAVING, now):
                # Again after a while, should it not help.
                self._stages[worker] = stage, now
                self._past(now + LEAVING, now)
                found.append(Kill(worker))
        return found

    def _impatient(self, state: State, now: float) -> list[Consequence]:
        """The first generation does not wait for those that take much longer than the first."""
        late = state.crew.at(Stage.STARTING, Stage.WAITING, Stage.LOADING)
        if state.phase is not Phase.GATHERING or self._ready is None or not late or not state.crew.at(Stage.READY):
            return []
        since, took = self._ready
        return [Impatient()] if self._past(since + max(GATHERING, LOADS * took), now) else []

    # --- members that keep each other waiting

    def _stalled(self, state: State, now: float) -> list[Consequence]:
        """Asks around at half the deadline, and accuses at the deadline on the strength of the answers."""
        limit, suspects = self.deadline(state), self._suspects(state)
        if state.crew.entering:
            limit = max(ANSWER, limit if len(self._paces) >= ENOUGH else 0.0)
        elif len(state.members) == 1:
            # It keeps nobody waiting.
            limit = max(2 * ANSWER, limit)
        if not suspects or not self._past(self._since + limit / 2, now):
            return []
        mute = [worker for worker in suspects if self._phase(worker) is None]
        pings = self._ask(mute, now)
        # However late they were asked, they have some time to answer.
        last = max((self._asked[worker] for worker in mute), default=0.0)
        if not self._past(max(self._since + limit, last + limit / 4), now):
            return pings
        accused = mute if mute else self._accused(state, suspects, now)
        seconds = now - self._still
        # Whoever is left is asked again, should this not help.
        self._since = now
        self._past(now + limit / 2, now)
        why = "does not answer" if mute else "keeps the others waiting"
        return [Hung(worker, f"{why}: no progress for {seconds:.1f} s") for worker in accused]

    def _suspects(self, state: State) -> list[int]:
        """Members that the others may be waiting for."""
        if state.crew.entering:
            return sorted(state.crew.entering)
        members = [worker for worker in state.members if worker not in state.idle]
        steps = {worker: self._steps.get(worker, -1) for worker in members}
        behind = [worker for worker in members if steps[worker] == min(steps.values())]
        # When none is behind, all may have switched already and wait for a newcomer.
        return behind if len(set(steps.values())) > 1 else [*behind, *state.crew.called]

    def _phase(self, worker: int) -> str | None:
        """What a worker said that it does, None when it has not said so since everything stands still."""
        at, phase = self._answers.get(worker, (0.0, ""))
        return phase if at > self._since else None

    def _accused(self, state: State, suspects: list[int], now: float) -> list[int]:
        """Of suspects that all answer, at most one: a busy one that others wait for, else the longest silent one."""
        phases = {worker: self._phase(worker) for worker in suspects}
        busy = [worker for worker in suspects if phases[worker] in BUSY]
        if FREE in phases.values() or len(busy) == len(state.members):
            return []
        if state.crew.entering and (busy or now - self._still < UNKNOWN):
            # The rest of a task, or much state on its way.
            return []
        return [min(busy or suspects, key=lambda worker: self._reported.get(worker, 0.0))]

    # --- members that may be in user code, which may take for ever

    def _watched(self, state: State, stalling: bool) -> dict[int, float]:
        """Workers whose main thread may do what it likes, but which have to answer within so many seconds."""
        crew = state.crew
        # While it imports or loads, one may keep its own control thread from answering.
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
