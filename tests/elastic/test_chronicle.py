"""The lines of a job's history."""

import pytest

from local_backend.elastic.driver.chronicle import Chronicle
from local_backend.elastic.hub.events import Commit, End, Note, Switched


def told(*steps):
    """Return the lines for (seconds since the action before, action)."""
    chronicle, now, lines = Chronicle(), 0.0, []
    for seconds, action in steps:
        now += seconds
        lines += chronicle.heard(action, now)
    return lines


def commits(count, seconds=0.1, epoch=0):
    return [(seconds, Commit(epoch, 1 + i, ())) for i in range(count)]


def switch(before, members, planned=True, counts=None):
    counts = counts or tuple(1 for _ in members)
    return Switched(generation=3, before=before, members=members, counts=counts, step=12, planned=planned)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (switch((1, 2), (1, 2, 3, 4)), "step 12: grew 2 → 4 (worker-3, worker-4), paused 31 ms"),
        (switch((1, 2, 3, 4), (1, 2)), "step 12: shrank 4 → 2 (worker-3, worker-4 left), paused 31 ms"),
        (switch((1, 2), (2, 3, 4)), "step 12: grew 2 → 3 (worker-3, worker-4, worker-1 left), paused 31 ms"),
        (switch((1, 2), (2, 5)), "step 12: worker-5 replaced worker-1, 2 → 2, paused 31 ms"),
        (switch((1, 2), (1, 2), counts=(6, 2)), "step 12: shards by speed: 6, 2, paused 31 ms"),
        (switch((1, 2), (2,), planned=False), "step 12: 1 worker continues in generation 3, paused 31 ms"),
        (switch((1, 2, 3), (2, 3), planned=False), "step 12: 2 workers continue in generation 3, paused 31 ms"),
    ],
)
def test_a_change_is_reported_with_its_pause(change, text):
    assert told(*commits(10), (0.0, change), (0.131, Commit(0, 11, ())), (0.1, Commit(0, 12, ()))) == [text]


def test_a_pause_in_the_second_step_counts_too():
    (line,) = told(*commits(10), (0.0, switch((1,), (1, 2))), (0.1, Commit(0, 11, ())), (0.2, Commit(0, 12, ())))
    assert line.endswith("paused 100 ms")


def test_a_faster_training_after_a_change_has_no_pause():
    (line,) = told(*commits(10), (0.0, switch((1,), (1, 2))), *commits(2, 0.05))
    assert line.endswith("paused 0 ms")


def test_long_pauses_are_reported_in_seconds():
    (line,) = told(*commits(10), (0.0, switch((1,), (1, 2))), *commits(2, 1.35))
    assert line.endswith("paused 2.5 s")


def test_the_time_between_two_epochs_is_no_pause():
    (line,) = told(*commits(10), (0.0, switch((1,), (1, 2))), (9.0, Commit(1, 0, ())), (0.1, Commit(1, 1, ())))
    assert line.endswith("paused 0 ms")


def test_the_time_between_two_epochs_is_not_part_of_the_usual_step_time():
    epochs = [step for epoch in range(3) for step in [(9.0, Commit(epoch, 0, ())), *commits(1, 0.1, epoch)]]
    (line,) = told(*epochs, (0.0, switch((1,), (1, 2))), *commits(2, 0.2, 2))
    assert line.endswith("paused 200 ms")


def test_no_pause_is_reported_without_an_earlier_step():
    assert told((0.0, switch((1,), (1, 2))), *commits(2)) == ["step 12: grew 1 → 2 (worker-2)"]


def test_the_first_generation_is_reported_at_once():
    assert told((0.0, switch((), (1, 2)))) == ["step 12: 2 workers (worker-1, worker-2) in generation 3"]


def test_a_note_is_reported_after_the_change_before_it():
    lines = told(*commits(3), (0.0, switch((1,), (1, 2))), (0.0, Note("step 13: worker-1 was killed by signal 9")))
    assert lines == ["step 12: grew 1 → 2 (worker-2)", "step 13: worker-1 was killed by signal 9"]


def test_a_death_is_reported_before_the_continuation_of_the_others():
    death = Note("step 12: worker-1 was killed by signal 9")
    lines = told(*commits(3), (0.0, switch((1, 2), (2,), planned=False)), (0.0, death), *commits(2, 0.15))
    assert lines == [death.text, "step 12: 1 worker continues in generation 3, paused 100 ms"]


def test_a_change_is_reported_even_if_no_step_follows():
    change = switch((1, 2), (2,), planned=False)
    parked = Note("step 12: parked; the state is kept until a slot is free")
    lines = told(*commits(3), (0.0, change), (0.0, parked))
    assert lines == ["step 12: 1 worker continues in generation 3", parked.text]
    assert told(*commits(3), (0.0, change), (0.0, End(b""))) == ["step 12: 1 worker continues in generation 3"]
    assert told(*commits(3), (0.0, change), (0.0, change)) == ["step 12: 1 worker continues in generation 3"]
