"""Stops, restarts, deletions and the death of the server at each moment between two steps of the loop of searches: the
table of experiments is that of an undisturbed search, no experiment runs twice, and none is forgotten."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from live_server import Live
from searching import ARGS, Searching, definition
from sqlalchemy import select, update
from support import VOLUME

from dlicmd.contract.states import FINISHED, KILLED, PENDING, RUNNING, TERMINAL
from local_backend.hypersearch.controller import SearchController, Suggested
from local_backend.hypersearch.definition import Definition, Known
from local_backend.hypersearch.objective import Found
from local_backend.store import execs, schema, searches
from local_backend.store.execs import ExecRow
from local_backend.store.searches import SearchRow

pytestmark = pytest.mark.integration

#: What happens at a moment: the server dies, calls about the search, or the end of its run time.
TROUBLES = ("death", "stop", "force", "restart", "delete", "time")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "TPE": {"algorithm": "TPE", "maxJobNum": 5, "maxParalleJobNum": 2},
    "rungs": {"algorithm": "Hyperband", "maxJobNum": 5, "maxParalleJobNum": 3, "resume": True,
              "algoParams": [{"name": "RandomSeed", "value": "5"}, {"name": "ResourceName", "value": "epochs"},
                             {"name": "ResourceValue", "value": "4"}, {"name": "eta", "value": "2"}]},
}
ALGORITHMS["asha"] = ALGORITHMS["rungs"] | {"algorithm": "ASHA", "maxParalleJobNum": 2}


class Death(BaseException):
    """The server dies here."""


class Moments:
    """Counts the moments at which something can come between, and lets it happen at one of them."""

    def __init__(self, at: int, trouble: Callable[[], None]) -> None:
        self.count, self._at, self._trouble = 0, at, trouble

    def pass_by(self) -> None:
        self.count += 1
        if self.count == self._at:
            self._trouble()


class BetweenTransactions:
    """The database of the loop, with a moment before and after each transaction."""

    def __init__(self, live: Live, moments: Moments) -> None:
        self._database, self._moments = live.database, moments
        self.bus = live.database.bus

    def read(self, work: Any) -> Any:
        found = self._database.read(work)
        self._moments.pass_by()
        return found

    def write(self, work: Any) -> Any:
        self._moments.pass_by()
        found = self._database.write(work)
        self._moments.pass_by()
        return found


class OutsideOfTest:
    """Submits as the server does. Suggestions and values are functions of the parameters."""

    def __init__(self, live: Live, moments: Moments) -> None:
        self._outside: Any = live.services.controller._outside
        self._moments = moments

    def submit(self, *args: Any) -> ExecRow:
        self._moments.pass_by()
        found: ExecRow = self._outside.submit(*args)
        self._moments.pass_by()
        return found

    def ask(self, search: SearchRow, definition: Definition, known: Sequence[Known], count: int) -> Future[Suggested]:
        told = sorted((one.told, one.value) for one in known if one.told is not None)
        answer: Future[Suggested] = Future()
        center = sum((at + 1) * (value or 0) for at, value in told) % 0.01
        answer.set_result(Suggested([{"rate": 0.05 + center + len(known) / 1000 + at / 100} for at in range(count)]))
        self._moments.pass_by()
        return answer

    def found(self, definition: Definition, exec_row: ExecRow, *, ended: bool) -> Found:
        self._moments.pass_by()
        parameters: Mapping[str, Any] = exec_row.workload.program.parameters or {}
        epochs = exec_row.rested if not ended else 4
        return Found({"loss": (float(parameters["rate"]) * 37) % 1 + 1 / (epochs or 1)})

    def wake(self) -> None:
        self._moments.pass_by()


class Trial:
    """One search on a server whose loop runs in the thread of the test, so that each moment is the same each time."""

    def __init__(self, live: Live, algorithm: str, name: str) -> None:
        self.live, self.name, self._rungs = live, name, algorithm != "TPE"
        args = f"{ARGS} --numWorker 2".replace("PyTorch", "edtPyTorch") if self._rungs else ARGS
        answer = Searching(live).post(definition(name=name, args=args, maxRunTime=60, **ALGORITHMS[algorithm]))
        assert answer.status == 200, answer.text
        self.number = self._row().number

    def _row(self) -> SearchRow:
        found = self.live.database.read(lambda c: searches.named(c, self.name, self.live.settings.user))
        assert found is not None
        return found

    def run(self, moments: Moments) -> None:
        """Run the search to its end. A server that dies is followed by another one; a stop by a restart."""
        loop = self._loop(moments)
        for _ in range(200):
            try:
                loop._turn(frozenset())
            except Death:
                loop = self._loop(moments)
            if self._gone():
                return
            if not self._row().active and not any(row.rested is None or row.stop_requested for row in self._running()):
                if self._row().state != "STOPPED":
                    return
                self.call("PUT", "/restart")
            self._next_end()
        raise AssertionError(f"no end: {self._row()} {self.rows()}")

    def _loop(self, moments: Moments) -> SearchController:
        return SearchController(BetweenTransactions(self.live, moments), OutsideOfTest(self.live, moments))

    def _gone(self) -> bool:
        return self.live.database.read(lambda c: searches.numbered(c, self.number)) is None

    def execs(self) -> list[ExecRow]:
        """Return all execs of the search."""
        parts = (schema.execs.c.parent == searches.search_id(self.number), schema.execs.c.deleted.is_(False))
        ids = select(schema.execs.c.id).where(*parts)
        found = self.live.database.read(lambda c: execs.with_ids(c, c.execute(ids).scalars().all()))
        return list(found.values())

    def _running(self) -> list[ExecRow]:
        return [row for row in self.execs() if row.state not in TERMINAL]

    def _next_end(self) -> None:
        """End one exec as the supervisor does, or let it rest."""
        for row in self._running():
            if row.stop_requested:
                return self.live.move(row.id, KILLED)
            if row.rest_after is None:
                return self.live.move(row.id, *(() if row.state == RUNNING else (PENDING, RUNNING)), FINISHED)
            if row.rested is None:
                if row.state != RUNNING:
                    self.live.move(row.id, PENDING, RUNNING)
                self.live.database.write(lambda c, one=row: execs.rest(c, one.id, one.rest_after or 0))
                return None
        return None

    def call(self, method: str, rest: str = "") -> int:
        return self.live.call(method, f"/hypersearch/{self.name}{rest}").status

    def trouble(self, kind: str) -> None:
        """Do something to the search at this moment."""
        if kind == "death":
            raise Death
        if kind == "time":
            begin = update(schema.searches).where(schema.searches.c.number == self.number).values(begin_time=0.0)
            self.live.database.write(lambda c: c.execute(begin))
        elif kind == "stop":
            self.call("PUT")
        else:
            self.call("PUT", "/force")
        if kind == "restart":
            self.call("PUT", "/restart")
        elif kind == "delete":
            self.call("DELETE")

    def rows(self) -> list[Any]:
        """Return the experiments. With rungs, a restart trains experiments again that the algorithm knew: it then
        learns their results again, in an order that does not matter to it."""
        found = self.live.database.read(lambda c: searches.experiments_of(c, self.number))
        return [(row.id, row.parameters, row.state, row.metric, row.resource, row.bracket, row.rung, row.rungs,
                 None if self._rungs else row.told) for row in found]

    def scores(self) -> dict[tuple[str, int], float]:
        """Return parameters and rung → value there. What ASHA promotes depends on the order in which jobs end."""
        found = self.live.database.read(lambda c: searches.experiments_of(c, self.number))
        assert [row.id for row in found] == list(range(ALGORITHMS["asha"]["maxJobNum"]))
        assert {row.state for row in found} == {FINISHED}
        return {(row.parameters, rung): value for row in found
                for rung, value in enumerate([*json.loads(row.rungs or "[]"), row.metric])}

    def check(self, most: int, moment: str = "") -> None:
        """Check that each experiment has one exec, and at most `most` that a stop has killed before."""
        found = self.live.database.read(lambda c: searches.experiments_of(c, self.number))
        owned = {row.exec_id for row in found}
        assert len(owned) == len(found) and None not in owned
        shown = {row.id: row for row in self.execs()}
        assert shown.keys() >= owned
        assert {row.state for row in shown.values() if row.id not in owned} <= {KILLED}, moment
        runs = Counter(row.workload.experiment.id for row in shown.values() if row.workload.experiment)
        assert runs.keys() == {row.id for row in found} and max(runs.values()) <= most, moment

    def check_in_time(self, calm: list[Any]) -> None:
        """Check the end of a search whose run time is over: what ended before has its results, and nothing runs."""
        rows = self.rows()
        assert {row[2] for row in rows} <= {FINISHED, "FAILED", KILLED} and not self._running()
        ended = any(row[2] == FINISHED for row in rows)
        assert self._row().state == (FINISHED if ended else "FAILED")
        assert [row[:2] for row in rows] == [row[:2] for row in calm[: len(rows)]]
        if not self._rungs:
            assert all(row[3] == other[3] for row, other in zip(rows, calm, strict=False) if row[2] == FINISHED)


def test_the_end_of_an_experiment_and_the_next_exec_are_one_transaction(live: Live) -> None:
    writes: list[Any] = []

    class Counting(BetweenTransactions):
        def write(self, work: Any) -> Any:
            writes.append(work)
            return super().write(work)

    search = Searching(live)
    search.begin(maxJobNum=3, maxParalleJobNum=1)
    calm = Moments(0, lambda: None)
    loop = SearchController(Counting(live, calm), OutsideOfTest(live, calm))
    for count in range(1, 4):
        loop._turn(frozenset())
        rows = search.rows()
        assert [row.state for row in rows] == [FINISHED] * (count - 1) + ["SUBMITTED"]
        live.move(str(rows[-1].exec_id), PENDING, RUNNING, FINISHED)
    assert writes == []  # all in the transactions that made the execs


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", TROUBLES)
def test_trouble_at_any_moment_changes_nothing(live: Live, algorithm: str, kind: str) -> None:
    calm = Trial(live, algorithm, "calm")
    moments = Moments(0, lambda: None)
    calm.run(moments)
    calm.check(1)
    assert calm._row().state == FINISHED and all(row[2] == FINISHED for row in calm.rows())
    # Each kind of trouble gets other moments, all kinds together get nearly all.
    first, every = (1, 1) if VOLUME > 1 else (1 + TROUBLES.index(kind), 7)
    for at in range(first, moments.count + 1, every):
        one = Trial(live, algorithm, f"{kind}-{at}")
        one.run(Moments(at, lambda one=one: one.trouble(kind)))
        if kind == "delete":
            rest = one._running()
            assert all(row.stop_requested for row in rest), f"moment {at}: an exec of a deleted search goes on"
            continue
        if kind == "time":
            one.check_in_time(calm.rows())
            continue
        assert one._row().state == FINISHED, (at, one._row())
        if algorithm == "asha":
            ours, theirs = one.scores(), calm.scores()
            assert {key for key in ours if not key[1]} == {key for key in theirs if not key[1]}
            assert all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys()), f"moment {at}"
        else:
            assert one.rows() == calm.rows(), f"moment {at} of {moments.count}"
        one.check(1 if kind == "death" else 2, f"moment {at} of {moments.count}")
