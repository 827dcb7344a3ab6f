"""State in objects without attributes is found. Values in a cache may be new but must not change."""

import contextvars
import functools
import itertools
import queue
import weakref
from array import array

import pytest
import torch
from torch import nn

from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.worker.strays import Drift, Strays, scan


class Slotted:
    __slots__ = ("count", "later")

    def __init__(self):
        self.count = 0


class Counts:
    def __init__(self):
        self.seen = 0


def mean():
    count = 0
    while True:
        yield count
        count += 1


def advance(counter):
    counter.count += 1


def add(counter):
    counter.seen += 1


@functools.cache
def unlimited():
    return Counts()


@functools.lru_cache(maxsize=4)
def limited(name):
    return {"seen": [name]}


VARIABLE = contextvars.ContextVar("counts")
VARIABLE.set(Counts())
KEPT = Counts()


def job(loss):
    model = nn.Linear(2, 2)
    return TrainingJob(model, tuple, loss, torch.optim.SGD(model.parameters(), 0.1), 1, 4)


@pytest.mark.parametrize(("held", "change"), [
    (itertools.count(), next),
    (mean(), next),
    (iter([1, 2, 3]), next),
    (iter(range(9)), next),
    (array("d", [0.0]), lambda held: held.append(1.0)),
    (bytearray(2), lambda held: held.extend(b"1")),
    (queue.SimpleQueue(), lambda held: held.put(1)),
    (Slotted(), advance),
    (weakref.ref(KEPT), lambda held: add(held())),
    (VARIABLE, lambda held: add(held.get())),
    (unlimited, lambda held: add(held())),
    (limited, lambda held: held("a")["seen"].append(1)),
], ids=lambda value: type(value).__name__ if not callable(value) else "")
def test_a_change_is_detected(held, change):
    unlimited(), limited("a"), limited("b")

    def loss(outputs, labels):
        return outputs if held else labels

    training = job(loss)
    before = scan(training)
    assert scan(training) == before, "the scan itself changed the state"
    change(held)
    assert scan(training) != before


@pytest.mark.parametrize("cached", [functools.cache, functools.lru_cache(maxsize=4)])
def test_a_new_value_in_a_cache_is_no_change(cached):
    @cached
    def positions(length):
        return torch.arange(length)

    def loss(outputs, labels):
        return positions(len(outputs))

    training = job(loss)
    strays = Strays(training, strict=True)
    drift = Drift(training, strays)
    drift.begin()
    marks = strays.before()
    loss([1, 2], None)
    strays.after(marks, lambda: pytest.fail("nothing has changed"))
    marks = strays.before()
    positions(3), positions(2)
    strays.after(marks, lambda: pytest.fail("nothing has changed"))
    assert drift.changed() == []
    drift = Drift(training, strays)
    drift.begin()
    positions(2).add_(1)
    (changed,) = drift.changed()
    assert "positions" in changed
    positions.cache_clear()
    assert drift.values([changed]) == [None], "a member without the cached value must report None"
