"""Random kills and resizes at any time, a few dozen of them. `tests/faults/soak.py` does it for hours."""

import random

import pytest
from trouble import Recipe, Trouble

from local_backend.elastic.driver import reporting

pytestmark = pytest.mark.slow

#: Far longer than all disturbances take.
LONG = Recipe(epochs=80, pace=0.02)
MISFORTUNES = 15


@pytest.mark.parametrize("seed", [1, 2])
def test_random_joins_leaves_and_deaths_do_not_change_the_result(trouble, unharmed, monkeypatch, seed):
    monkeypatch.setattr(reporting, "PROGRESS_INTERVAL", 0.0)
    dice = random.Random(seed)
    training = trouble(dice.randint(1, 4), LONG, snapshot_seconds="0.2")
    training.begin()
    for _ in range(MISFORTUNES):
        target = training.status.get("step", 0) + dice.randint(1, 3)
        training.wait_or_end(lambda target=target: training.status.get("step", 0) >= target)
        misfortune(training, dice)
    training.finish()
    training.check(unharmed(LONG))
    assert training.status["deaths"] + training.status["resizes"] > MISFORTUNES / 2


def misfortune(training: Trouble, dice: random.Random) -> None:
    """Kill one worker, kill two, request another number of workers, or kill and request without waiting."""
    kinds = dice.choice(["kill", "kill", "kills", "resize", "resize", "both"])
    if kinds != "resize":
        alive = training.alive()
        for worker in dice.sample(alive, min(len(alive), 1 + (kinds == "kills"))):
            training.workers[worker].kill()
    if kinds in ("resize", "both"):
        training.allocate(dice.randint(1, 4))
