"""The hub's decisions, with simulated workers in random order; no process, no socket."""

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import WEATHERS, Weather, World
from support import examples

from local_backend.elastic.hub import deaths, events, hub
from local_backend.elastic.hub.events import (
    Allocated,
    Applied,
    Arrived,
    AtBoundary,
    BatchResult,
    Broken,
    Commit,
    End,
    Entered,
    Fail,
    Failed,
    Finished,
    Formed,
    Gone,
    Impatient,
    Kept,
    Left,
    Lost,
    Note,
    Published,
    Ready,
    Rested,
    Send,
    Spawn,
    Stepped,
    Switched,
    TaskDone,
    Unbalanced,
)
from local_backend.elastic.hub.hub import Course, Phase
from local_backend.elastic.hub.membership import SLOT_FAILURES, Stage
from local_backend.elastic.hub.watching import Watch, WatchRule
from local_backend.elastic.position import EpochStage, Position


def course(workers=4, epochs=3, **changes):
    values = {
        "batch": 4, "step_samples": 16, "seed": 1, "validation_freq": 1, "checkpoint_freq": 2, **changes,
    }
    return Course(workers, epochs, **values)


def sent(world, op):
    return [action for action in world.of(Send) if action.message["op"] == op]


# --- whole jobs


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("seed", [
    seed if seed < 10 else pytest.param(seed, marks=pytest.mark.integration) for seed in range(25)
])
def test_every_kind_of_fault_leaves_the_result_unchanged(weather, seed):
    World(course(), seed, WEATHERS[weather]).run()


@given(
    workers=st.integers(1, 6),
    slots=st.integers(1, 6),
    shards=st.integers(1, 8),
    epochs=st.integers(1, 4),
    validation_freq=st.integers(0, 3),
    checkpoint_freq=st.integers(0, 3),
    samples=st.integers(1, 80),
    test_batches=st.integers(0, 9),
    test_chunk=st.integers(1, 4),
    watch=st.builds(
        Watch, stopping=st.none() | st.just(WatchRule()), patience=st.integers(1, 2),
        best=st.none() | st.just(WatchRule("loss")),
    ),
    stop_after=st.none() | st.integers(0, 3),
    weather=st.sampled_from(sorted(WEATHERS)),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=examples(250), deadline=None)
def test_faults_leave_the_result_of_every_course_unchanged(  # noqa: PLR0917
    workers, slots, shards, epochs, validation_freq, checkpoint_freq, samples, test_batches, test_chunk, watch,
    stop_after, weather, seed,
):
    what = course(
        workers, epochs, step_samples=4 * shards, validation_freq=validation_freq, checkpoint_freq=checkpoint_freq,
        test_chunk=test_chunk, watch=watch,
    )
    World(
        what, seed, WEATHERS[weather], slots=slots, samples=samples, test_batches=test_batches, stop_after=stop_after
    ).run()


@pytest.mark.parametrize("seed", range(30))
def test_a_restarted_driver_continues_from_the_first_drivers_progress(seed):
    what = course(validation_freq=0)
    first = World(what, seed, WEATHERS["deaths"])
    limit = random.Random(seed).randrange(1, first.plan.steps)
    first.until(lambda: first.committed >= limit)
    second = World(what, seed, Weather(), after=first)
    second.run()
    assert len(second.of(Commit)) == second.plan.steps - first.committed


def test_a_snapshot_newer_than_the_logged_steps_is_not_used():
    assert hub.begin(course(), Kept(0, Position(5), "file"), committed=4).kept is None
    kept = Kept(0, Position(4, EpochStage.ENDED), "file")
    assert hub.begin(course(), kept, committed=4).kept == kept


def test_a_state_is_never_changed_in_place():
    world = World(course(), 3, WEATHERS["deaths"])
    world.until(lambda: world.committed == 3)
    before, copy = world.state, repr(world.state)
    world.run()
    assert repr(before) == copy


def nonsense(worker, generation):
    """Return events that fit no phase, of an existing worker."""
    results = (BatchResult(0, 1, 0.0, None),)
    return [
        Arrived(worker), Ready(worker, 37, 5), Published(worker, generation, "key", b""), Formed(worker, generation),
        Entered(worker, generation, 3), Stepped(worker, 5, results), AtBoundary(worker, 1), TaskDone(worker, results),
        Applied(worker, 5),
        Kept(worker, Position(0, EpochStage.BEGUN), "file"), Left(worker), Finished(worker, b"state"),
        Broken(worker, generation),
        Failed(worker, "ValueError", ""), Lost(worker), Gone(worker, "has ended"), Impatient(), Unbalanced((1, 2)),
        Allocated(()),
    ]


@pytest.mark.parametrize("seed", [
    seed if seed < 4 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)
])
def test_no_message_in_any_phase_raises_an_error_in_the_hub(seed):
    world = World(course(), seed, WEATHERS["everything"])
    seen = set()
    while world.state.phase is not Phase.ENDED:
        world.until(lambda: world.random.random() < 0.03)
        seen.add(world.state.phase)
        numbers = {world.state.crew.active.number + offset for offset in (-1, 0, 1)}
        for worker in list(world.state.crew.peers)[:3]:
            for event in (event for number in numbers for event in nonsense(worker, number)):
                state, _ = hub.step(world.state, event)
                hub.step(state, Gone(worker, "has ended"))
    assert Phase.TRAINING in seen


# --- the beginning


@pytest.mark.parametrize("seed", range(10))
def test_one_worker_loads_its_data_alone_before_the_others(seed):
    world = World(course(), seed)
    while world.state.crew.data is None:
        before = world.state
        world.until(lambda before=before: world.state is not before)
        assert len(world.state.crew.at(Stage.LOADING)) <= 1 or world.state.crew.data is not None
    world.until(lambda: world.state.phase is not Phase.GATHERING)
    assert sorted(action.worker for action in sent(world, "load")) == [1, 2, 3]


def test_the_next_worker_loads_after_the_first_dies_while_loading():
    world = World(course(), 0)
    world.until(lambda: sent(world, "load"))
    (first,) = sent(world, "load")
    world.die(world.workers[first.worker], "was killed by signal 9")
    world.until(lambda: len(sent(world, "load")) == 2)
    assert sent(world, "load")[1].worker != first.worker
    world.run()


def test_a_worker_that_is_not_ready_joins_later():
    world = World(course(), 1)
    world.until(lambda: world.state.crew.at(Stage.READY))
    world.feed(Impatient())
    world.until(lambda: world.of(Switched))
    assert len(world.of(Switched)[0].members) == 1
    world.run()


def test_a_new_worker_learns_the_present_epoch():
    world = World(course(3, epochs=3), 0, slots=2, samples=300)
    world.until(lambda: world.state.epoch == 1 and world.state.phase is Phase.TRAINING)
    world.allocate(("a", "b", "c"))
    world.until(lambda: len(sent(world, "load")) == 3)
    assert [action.message["epoch"] for action in sent(world, "load")] == [0, 0, 1]
    world.run()


def test_data_sets_of_different_lengths_are_refused():
    world = World(course(), 0)
    for worker in (1, 2):
        world.feed(Arrived(worker))
    world.feed(Ready(1, 100, 5))
    world.feed(Ready(2, 90, 5))
    (fail,) = world.of(Fail)
    assert "worker 1 has 100 training samples" in fail.reason
    assert "worker 2 has 90" in fail.reason


def test_different_samples_are_refused_before_training_and_after_an_epoch():
    world = World(course(), 0)
    for worker in (1, 2):
        world.feed(Arrived(worker))
    world.feed(Ready(1, 100, 5, {"training sample 3": "a", "training sample 4": "b"}))
    world.feed(Ready(2, 100, 5, {"training sample 4": "c", "training sample 3": "a"}))
    (fail,) = world.of(Fail)
    assert "training sample 4 differs between worker 1 and worker 2; datasets_function must" in fail.reason
    said = [{"training sample 3": "a"}, {"training sample 3": "a"}, {"training sample 9": "b"}]
    World(course(), 0, data_of=lambda worker, epoch: said[(worker + epoch) % 3]).run()
    world = World(course(), 0, data_of=lambda worker, epoch: {"training sample 3": f"{worker}" if epoch else "a"})
    world.until(lambda: world.of(Fail))
    (fail,) = world.of(Fail)
    assert "differ between workers after epoch 1: training sample 3 differs between worker" in fail.reason
    assert "; a sample must depend only on its index" in fail.reason


def test_a_slot_on_which_no_worker_starts_is_given_up():
    world = World(course(), 0, Weather(bad=("b",)))
    world.run()
    assert world.of(End)
    assert len([spawn for spawn in world.of(Spawn) if spawn.slot == "b"]) == SLOT_FAILURES
    assert any("b is no longer used" in note.text for note in world.of(Note))


def test_a_job_fails_if_no_worker_starts_on_any_slot():
    world = World(course(), 0, Weather(bad=("a", "b", "c")))
    world.run()
    (fail,) = world.of(Fail)
    assert re.fullmatch(r"no worker started training on any slot of the job: worker-\d+ .*", fail.reason)
    assert len(world.of(Spawn)) == 3 * SLOT_FAILURES


# --- deaths


def test_an_exception_ends_the_job_with_its_cause():
    world = World(course(), 0)
    world.until(lambda: world.committed == 2)
    failed = Failed(2, "ValueError: boom", "Traceback ...", b"pickle")
    world.feed(failed)
    world.feed(Gone(1, "was killed by signal 9"))
    assert world.of(Fail) == [Fail("worker 2: ValueError: boom", failed)]


def test_an_exception_of_a_removed_worker_is_only_a_note():
    world = World(course(), 0)
    world.until(lambda: world.committed == 2)
    world.feed(Lost(2))
    world.feed(Failed(2, "BrokenPipeError: no peer", ""))
    notes = [note.text for note in world.of(Note)]
    assert "worker-2 failed after it had left the training: BrokenPipeError: no peer" in notes
    world.run()
    assert world.of(End)


def settle_and_kill(world):
    """Kill a member as soon as all members have entered, and wait for the next generation."""
    world.until(lambda: world.state.members and not world.state.crew.entering)
    world.die(world.workers[world.state.members[-1]], "was killed by signal 9")
    generation = world.state.crew.active.number
    world.until(lambda: world.state.crew.active.number != generation or world.state.phase is Phase.ENDED)


@pytest.mark.parametrize("seed", range(10))
def test_the_first_step_after_a_death_is_committed_before_the_next_one(seed):
    world = World(course(), seed, samples=300)
    world.until(lambda: world.committed == 3)
    settle_and_kill(world)
    world.until(lambda: not world.state.crew.entering)
    state, step = world.state, world.state.committed
    results = tuple(BatchResult(shard, 4, 1.0, 1) for shard in range(4))
    for worker in state.members:
        state, actions = hub.step(state, Stepped(worker, step, results))
        assert not actions
    for worker in state.members:
        state, _ = hub.step(state, Applied(worker, step + 1))
    assert state.committed == step + 1


def test_repeated_interruptions_at_the_same_step_fail_the_job():
    world = World(course(6, step_samples=32), 0, slots=6)
    for _ in range(deaths.BREAKS - 1):
        settle_and_kill(world)
        assert world.of(Fail) == []
    settle_and_kill(world)
    (fail,) = world.of(Fail)
    assert "interrupted 3 times at step 0" in fail.reason
    assert re.search(r"\(before that, worker-\d+ was killed by signal 9\)", fail.reason), (
        "the cause of the interruption is missing"
    )


def test_repeated_losses_of_all_workers_at_the_same_step_fail_the_job():
    world = World(course(), 0, slots=1)
    for _ in range(deaths.BREAKS):
        assert world.of(Fail) == []
        settle_and_kill(world)
    (fail,) = world.of(Fail)
    assert "interrupted 3 times at step 0" in fail.reason


def test_deaths_with_progress_in_between_do_not_add_up():
    world = World(course(epochs=5), 0)
    for step in range(1, 8):
        settle_and_kill(world)
        world.until(lambda step=step: world.committed > 2 * step)
    world.run()
    assert world.of(End)


def test_several_deaths_at_once_interrupt_training_once():
    world = World(course(), 0, slots=4)
    world.until(lambda: world.committed == 1 and not world.state.crew.entering)
    victims = world.state.members[:3]
    for worker in victims:
        world.die(world.workers[worker], "was killed by signal 9")
    world.until(lambda: world.state.crew.active.members == (4,) and not world.state.crew.entering)
    assert world.state.breaks == 1
    world.run()
    assert world.of(End)


def test_a_death_is_in_the_history_once_with_its_cause():
    world = World(course(), 0)
    world.until(lambda: world.committed == 2)
    world.die(world.workers[2], "was killed by signal 9")
    world.run()
    assert [note.text for note in world.of(Note)] == [f"step {world_step(world)}: worker-2 was killed by signal 9"]
    assert world.state.crew.deaths == 1


def world_step(world):
    """Return the step in the only note."""
    return int(world.of(Note)[0].text.split(":")[0].removeprefix("step "))


# --- changes of the slots


def test_new_workers_do_not_wait_for_the_end_of_a_long_validation():
    world = World(course(), 0, slots=1, test_batches=300)
    world.until(lambda: world.state.phase is Phase.BOUNDARY)
    world.allocate(("a", "b"))
    world.until(lambda: len(world.state.members) == 2)
    assert world.state.phase is Phase.BOUNDARY
    assert world.state.todo
    world.run()


def test_new_workers_do_not_wait_for_a_boundary_that_is_repeated():
    world = World(course(epochs=2), 0, Weather(snapshot=0.0), slots=2, samples=2000)
    world.until(lambda: world.state.phase is Phase.BOUNDARY)
    for worker in list(world.workers.values()):
        if worker.alive:
            world.die(worker, "was killed by signal 9")
    world.until(lambda: world.state.recovering)
    world.until(lambda: len(world.state.members) == 2 and not world.state.crew.entering)
    assert world.state.phase is Phase.BOUNDARY
    assert max(world.state.crew.peers[worker].applied for worker in world.state.members) < world.plan.steps_per_epoch
    world.run()


def test_new_workers_take_over_when_all_slots_are_replaced():
    world = World(course(), 0, Weather(snapshot=0.0), slots=2, samples=300)
    world.until(lambda: world.committed == 3)
    world.allocate(("a", "b", "c", "d"))
    world.until(lambda: world.state.crew.at(Stage.READY))
    world.allocate(("c", "d"))
    world.run()
    assert not any("parked" in note.text or "again" in note.text for note in world.of(Note))


def test_a_job_without_slots_keeps_its_state_and_continues_from_it():
    world = World(course(), 0, Weather(snapshot=0.0), samples=300)
    world.until(lambda: world.committed == 5)
    world.allocate(())
    world.until(lambda: world.state.parked and not world.state.parking)
    kept, before = world.state.kept, len(world.actions)
    assert kept is not None and kept.position >= Position(5)
    world.run()
    loads = [send.message for send in world.actions[before:] if isinstance(send, Send) and send.message["op"] == "load"]
    assert not loads[0]["warm"]  # no member trains meanwhile
    (continues,) = [note.text for note in world.of(Note) if "from the snapshot" in note.text]
    assert continues.endswith(f"from the snapshot of step {kept.position.steps}") and "recovered" not in continues


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize("seed", [
    seed if seed < 5 else pytest.param(seed, marks=pytest.mark.integration) for seed in range(25)
])
def test_a_job_rests_and_goes_on_with_the_same_result(weather, seed):
    world = World(course(epochs=5), seed, WEATHERS[weather], rests=(1, 3))
    world.run()
    if weather == "calm":
        assert [*dict.fromkeys(rested.epochs for rested in world.of(Rested))] == [1, 3]


@pytest.mark.parametrize("seed", range(20))
def test_a_job_may_be_promoted_at_any_moment(seed):
    world = World(course(epochs=5), seed, WEATHERS["slots that come and go"], rests=(1, 2, 3), hasty=0.01)
    world.run()


@pytest.mark.parametrize("seed", range(10))
def test_workers_that_rest_go_on_at_once_if_the_job_is_promoted_before_it_loses_its_slots(seed):
    world = World(course(epochs=5), seed, Weather(snapshot=0.0), rests=(2, 3))
    world.until(lambda: world.of(Rested))
    members, switches = world.state.members, len(world.of(Switched))
    assert world.of(Rested) == [Rested(2, stored=False)] and members
    world.promote()
    world.until(lambda: len(world.of(Rested)) == 2)
    assert world.of(Rested)[1] == Rested(3, stored=False) and world.state.members == members
    world.promote()
    world.run()
    assert world.state.kept is None and len(world.of(Switched)) == switches


@pytest.mark.parametrize("seed", range(10))
def test_a_resting_job_without_slots_reports_once_that_its_state_is_kept(seed):
    world = World(course(epochs=5), seed, Weather(snapshot=0.0), rests=(2,))
    world.until(lambda: world.of(Rested))
    world.allocate(())
    world.until(lambda: world.state.rested)
    state, end = world.state, 2 * world.plan.steps_per_epoch
    assert (state.committed, state.members, state.parking) == (end, (), ())
    assert state.parked and state.kept is not None and state.kept.position == Position(end, EpochStage.TOLD)
    assert not [peer for peer in state.crew.peers.values() if peer.stage is not Stage.LEAVING]
    world.until(lambda: not world.state.crew.peers)
    world.allocate(("a", "b"))  # other slots do not end the rest
    assert world.state == replace(state, crew=world.state.crew) and not world.state.crew.peers
    world.run()
    assert len(world.of(Rested)) == 2


def test_a_job_that_lost_its_workers_before_the_state_was_kept_trains_to_the_boundary_again():
    world = World(course(epochs=5), 1, Weather(snapshot=0.1), rests=(2,))
    world.until(lambda: world.of(Rested))
    world.allocate(())
    world.until(lambda: world.state.parking)
    for worker in [worker for worker in world.workers.values() if worker.alive]:
        world.die(worker, "was killed by signal 9")
    world.until(lambda: not world.state.resting)
    world.until(lambda: world.state.resting)
    world.allocate(())
    world.until(lambda: world.state.rested)
    assert world.state.kept.position == Position(2 * world.plan.steps_per_epoch, EpochStage.TOLD)
    world.run()


def test_a_training_that_ends_before_or_with_the_epoch_of_its_rest_does_not_rest():
    for rest in (3, 9):
        world = World(course(epochs=3), rest, rests=(rest,))
        world.run()
        assert not world.of(Rested)
    world = World(course(epochs=5), 0, rests=(2,), stop_after=1)
    world.run()
    assert not world.of(Rested)


@pytest.mark.parametrize("seed", range(20))
def test_a_driver_that_is_restarted_around_a_rest_continues_from_the_kept_state(seed):
    what, rests = course(epochs=5, validation_freq=0), () if seed % 4 < 2 else (3,)
    first = World(what, seed, WEATHERS["deaths"], rests=(2,))
    first.until(lambda: first.of(Rested) if seed % 2 else first.state.resting)
    second = World(what, seed, Weather(), rests=rests, after=first)
    second.run()
    assert len(second.of(Commit)) == second.plan.steps - first.committed


def test_a_called_new_worker_that_loses_its_slot_leaves_without_a_break():
    world = World(course(), 0, slots=2, samples=300)
    world.until(lambda: world.committed == 3)
    world.allocate(("a", "b", "c"))
    world.until(lambda: world.state.crew.called)
    world.allocate(("a", "b"))
    assert world.doomed == set()
    world.run()
    assert world.state.crew.deaths == world.state.breaks == 0


def test_a_left_message_counts_only_for_a_worker_that_must_leave():
    world = World(course(), 0, slots=3, samples=300)
    world.until(lambda: world.committed == 3)
    assert hub.step(world.state, Left(1)) == (world.state, ())
    world.allocate(("b", "c"))
    assert world.state.crew.pending is not None and not world.state.crew.confirmed
    assert hub.step(world.state, Left(1)) == (world.state, ())
    world.until(lambda: world.state.crew.confirmed)
    state, _ = hub.step(world.state, Left(1))
    assert state.members == (2, 3)


def parking(seed=0):
    """Return a world that parks workers 1 to 3.

    One of them has left its generation already and keeps the state. Also return this worker and one that has not left.
    """
    world = World(course(), seed, Weather(snapshot=0.0), samples=300)
    world.until(lambda: world.committed == 5)
    world.allocate(())
    world.until(lambda: world.state.out)
    assert len(world.state.parking) == 3 and len(world.state.out) == 1
    return world, world.state.out[0], next(w for w in (1, 2, 3) if w not in world.state.out)


def test_the_next_worker_that_left_keeps_the_state_if_the_keeper_dies():
    world, keeper, other = parking()
    state, _ = hub.step(world.state, Left(other))
    state, actions = hub.step(state, Lost(keeper))
    assert Send(other, {"op": "keep"}) in actions
    state, actions = hub.step(state, Kept(other, Position(50), "file"))
    assert [action.worker for action in actions if isinstance(action, Send)] == sorted({1, 2, 3} - {keeper})


def test_workers_that_may_wait_for_a_dead_keeper_are_called_out():
    world, keeper, other = parking()
    state, actions = hub.step(world.state, Lost(keeper))
    called = [action for action in actions if isinstance(action, Send) and action.message["op"] == "enter"]
    assert {action.worker for action in called} == {1, 2, 3} - {keeper}
    state, actions = hub.step(state, Left(other))
    assert actions == (Send(other, {"op": "keep"}),)
    assert hub.step(state, Left(other)) == (state, ())


def test_an_older_snapshot_that_arrives_late_does_not_end_parking():
    world, keeper, _ = parking()
    state, actions = hub.step(world.state, Kept(keeper, Position(2), "old"))
    assert actions == () and state.parking == world.state.parking
    state, actions = hub.step(state, Kept(keeper, Position(50), "new"))
    assert state.parking == () and state.kept.path == "new"


# --- the end of an epoch


@pytest.mark.parametrize("seed", range(5))
def test_an_undisturbed_job_saves_and_validates_everything_once(seed):
    world = World(course(epochs=4), seed)
    world.run()
    states = {("state", 2, "['2']"): 1, ("state", 4, "['final']"): 1}
    assert world.writes == {"artifacts": 1, ("save", 2, "2"): 1, ("save", 4, "final"): 1, **states}
    first = min(action.worker for action in sent(world, "load"))
    assert {action.worker for action in sent(world, "save")} == {first}
    assert len(sent(world, "test")) == 4 * world.test_batches
    assert len({action.worker for action in sent(world, "test")}) > 1


def test_means_are_over_samples():
    results = (BatchResult(0, 30, 1.0, 30, {"f": 2.0}), BatchResult(1, 10, 5.0, 0, {"f": 6.0}))
    assert events.mean_loss(results) == 2.0
    assert events.accuracy(results) == 0.75
    assert events.mean_metrics(results) == {"f": 3.0}
    assert events.accuracy((BatchResult(0, 1, 0.5, None),)) is None
