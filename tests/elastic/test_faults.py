"""Faults at chosen points: real workers are killed, stopped or disconnected.

The result must equal the result of one undisturbed worker, to the last bit. `faults.POINTS` lists the points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from trouble import CRASHED, KILLED, Recipe

pytestmark = pytest.mark.integration

#: A short training, and its last step.
SHORT, LAST = Recipe(epochs=2, pace=0.0), 5

#: point:step at which a member is lost during the training. The first worker writes files, and may come too late to
#: validate.
INSTANTS = (
    "before-reduce:0", "before-reduce:4", "mid-reduce:4", "after-reduce:4", "mid-apply:4", "callbacks:0", "callbacks:2",
    "boundary:5", "validating:5",
)
#: The cases of every test run; all others are marked slow.
CHOSEN = {
    ("before-reduce:0", 1), ("mid-reduce:4", 2), ("mid-apply:4", 2), ("callbacks:2", 1), ("validating:5", 2),
}


def cells(rows: Iterable[tuple], chosen: set) -> list:
    """Return the rows as parameters, with all rows except the chosen ones marked slow."""
    return [pytest.param(*row, marks=[] if row in chosen else pytest.mark.slow) for row in sorted(rows)]


@pytest.mark.parametrize(
    ("instant", "worker"), cells(set(itertools.product(INSTANTS, (1, 2))) - {("validating:5", 1)}, CHOSEN)
)
def test_a_killed_member_is_replaced(trouble, unharmed, instant, worker):
    training = trouble(2)
    point, step = instant.split(":")
    training.suffer(f"{point}:{worker}:{step}:kill")
    training.wait(lambda: training.spawned() == 3, "a worker instead of the dead one")
    training.wait_or_end(lambda: training.status.get("workers") == 2)
    training.finish()
    training.check(unharmed(training.recipe), {worker: KILLED}, 2)
    assert training.status["deaths"] == 1
    assert training.spawned() == 3


@pytest.mark.parametrize(("action", "code"), [("exit", 0), ("segfault", CRASHED)])
def test_a_member_that_exits_or_crashes_is_replaced(trouble, unharmed, action, code):
    training = trouble(2)
    training.suffer(f"mid-reduce:2:4:{action}")
    training.wait(lambda: training.spawned() == 3, "a worker instead of the dead one")
    training.finish()
    training.check(unharmed(training.recipe), {2: code}, 2)
    assert training.status["deaths"] == 1


#: (slots, workers that die in the same step, point)
TOGETHER = [
    (3, (2, 3), "mid-reduce"),
    (4, (1, 3, 4), "after-reduce"),
    (4, (2, 3, 4), "before-reduce"),
    (4, (1, 2, 3), "mid-apply"),
    (3, (1, 2), "boundary"),
    (3, (1, 3), "validating"),
]


@pytest.mark.parametrize(("slots", "dead", "point"), cells(TOGETHER, {TOGETHER[0], TOGETHER[1], TOGETHER[5]}))
def test_training_continues_after_several_members_die_together(trouble, unharmed, slots, dead, point):
    training = trouble(slots)
    training.suffer(*(f"{point}:{worker}:5:kill" for worker in dead))
    training.wait(lambda: training.spawned() == slots + len(dead), "workers instead of the dead")
    training.wait_or_end(lambda: training.status.get("workers") == slots)
    training.finish()
    training.check(unharmed(training.recipe), dict.fromkeys(dead, KILLED), slots)
    assert training.status["deaths"] == len(dead)


@pytest.mark.parametrize("snapshots", ["3600", "0.01"])
def test_new_workers_continue_after_all_members_die_together(trouble, unharmed, snapshots):
    training = trouble(2, snapshot_seconds=snapshots)
    training.suffer("mid-reduce:1:7:kill", "mid-reduce:2:7:kill")
    training.wait(lambda: training.spawned() == 4, "workers instead of the dead")
    training.finish()
    training.check(unharmed(training.recipe), {1: KILLED, 2: KILLED}, 2)
    assert any(("no snapshot" if snapshots == "3600" else "from the snapshot") in line for line in training.history())


@pytest.mark.parametrize("worker", [1, 2])
def test_training_survives_the_only_holder_dying_while_it_sends_its_state(trouble, unharmed, worker):
    training = trouble(2)
    training.suffer(f"after-reduce:{3 - worker}:4:break", f"state-copy:{worker}:*:kill")
    training.wait(lambda: training.spawned() == 3, "a worker instead of the dead one")
    training.finish()
    training.check(unharmed(training.recipe), {worker: KILLED}, 2)


@pytest.mark.parametrize("worker", [1, 2])
def test_a_broken_connection_costs_no_worker(trouble, unharmed, worker):
    training = trouble(2)
    training.suffer(f"after-reduce:{worker}:4:break")
    training.finish()
    training.check(unharmed(training.recipe), {}, 2)
    assert training.status["deaths"] == 0
    assert training.spawned() == 2


#: Points at which a new worker is lost.
COMING = (
    "starting", "loading", "warming", "ready", "forming", "entering", "receiving", "mid-reduce", "mid-apply",
)


@pytest.mark.parametrize(("point", "action"), cells(
    itertools.product(COMING, ("kill", "exit")),
    {(point, "kill") for point in ("starting", "ready", "forming", "receiving")},
))
def test_a_new_worker_that_is_lost_is_replaced(trouble, unharmed, point, action):
    training = trouble(2)
    training.suffer(f"{point}:3:*:{action}")
    training.wait_for_step(2)
    training.allocate(3)
    training.wait(lambda: training.spawned() == 4, "another newcomer")
    training.wait_or_end(lambda: training.status.get("workers") == 3)
    training.finish()
    training.check(unharmed(training.recipe), {3: KILLED if action == "kill" else 0}, 2)


def test_training_survives_the_death_of_the_sender_of_the_state(trouble, unharmed):
    training = trouble(2)
    training.suffer("state-copy:1:*:kill")
    training.wait_for_step(2)
    training.allocate(3)
    training.wait(lambda: training.exits().get(1) == KILLED, "the sender dies")
    training.wait(lambda: training.spawned() == 4, "a worker instead of the dead one")
    training.finish()
    training.check(unharmed(training.recipe), {1: KILLED}, 2)


@pytest.mark.parametrize("fault", [f"leaving:3:*:{action}" for action in ("kill", "exit")])
def test_a_leaving_worker_that_dies_is_not_replaced(trouble, unharmed, fault):
    training = trouble(3)
    training.suffer(fault)
    training.wait_for_step(2)
    training.resize(2)
    training.finish()
    training.check(unharmed(training.recipe), {3: KILLED if fault.endswith("kill") else 0}, 3)
    assert training.spawned() == 3


@pytest.mark.parametrize("point", ["leaving", "keeping"])
def test_deaths_while_a_job_is_parked_do_not_change_the_result(trouble, unharmed, point):
    training = trouble(2)
    training.suffer(*(f"keeping:{worker}:*:kill" for worker in (1, 2)) if point == "keeping" else ["leaving:1:*:kill"])
    training.wait_for_step(2)
    training.allocate(0)
    training.wait(lambda: not training.alive(), "all workers end")
    # The second worker keeps the state when the first one dies.
    assert training.exits() == {1: KILLED, 2: KILLED if point == "keeping" else 0}
    training.allocate(2)
    training.wait(lambda: training.spawned() == 4, "new workers")
    training.finish()
    assert training.result() == unharmed(training.recipe)


#: Points at which the work of the last step is lost.
ENDING = {
    ("callbacks", 1), ("callbacks", 2), ("boundary", 1), ("boundary", 2), ("checkpoint-rename", 1), ("validating", 2),
    ("finishing", 1), ("finishing", 2),
}


@pytest.mark.parametrize(
    ("point", "worker"), cells(ENDING, ENDING - {("callbacks", 2), ("boundary", 2), ("validating", 2)})
)
def test_a_worker_that_dies_at_the_end_does_not_change_the_result(trouble, unharmed, point, worker):
    training = trouble(2, SHORT)
    training.suffer(f"{point}:{worker}:{LAST}:kill")
    training.finish()
    training.check(unharmed(training.recipe), {worker: KILLED}, 2)


def test_the_last_of_four_workers_delivers_the_final_state(trouble, unharmed):
    training = trouble(4, SHORT)
    training.suffer(*(f"finishing:{worker}:*:kill" for worker in (1, 2, 3)))
    training.finish()
    training.check(unharmed(training.recipe), dict.fromkeys((1, 2, 3), KILLED), 4)


@pytest.mark.parametrize("point", ["snapshot-rename", "checkpoint-rename"])
def test_a_writer_that_dies_before_its_file_is_complete_is_replaced(trouble, unharmed, point):
    training = trouble(2, snapshot_seconds="0.01")
    training.suffer(f"{point}:1:{'*' if point.startswith('snap') else 5}:kill")
    training.wait(lambda: training.spawned() == 3, "a worker instead of the dead one")
    training.finish()
    training.check(unharmed(training.recipe), {1: KILLED}, 2)
