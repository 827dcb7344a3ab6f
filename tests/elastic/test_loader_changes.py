"""Values that callbacks change reach copies of data sets and collate functions, as in loader processes."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from local_backend.elastic.data.loader_changes import LoaderChanges
from local_backend.elastic.script.hooked import Variable


class Data:
    """A data set with values of all kinds."""

    def __init__(self) -> None:
        self.epoch, self.name = 0, "a"
        self.rate, self.table = torch.zeros(3), np.zeros(3)
        self.nested: dict[str, Any] = {"scale": (1, [2.0])}
        self.objects = np.array([object()], dtype=object)
        self.opened = object()
        self.large = list(range(100_000))
        self.list: list[Any] = [1, 2]
        self.settings = {"flip": False}


def job_of(data: Data, *more: Any) -> Any:
    return SimpleNamespace(parts=[data, data.list, data.settings, *more])


def carried(data: Data, theirs: Data, *change: Any) -> bool:
    """Whether a change of `data` is noticed; apply it to the copy."""
    changes = LoaderChanges(job_of(data), [data])
    copied = LoaderChanges(job_of(theirs), [theirs])
    assert not changes.update() and changes.data == b""
    for call in change:
        call()
    noticed = changes.update()
    assert not changes.update(), "a change is noticed once"
    if changes.data:
        copied.apply(changes.data)
    return noticed


def test_changed_values_are_set_in_a_copy() -> None:
    data = Data()
    theirs = copy.deepcopy(data)

    def change() -> None:
        data.epoch, data.name = 3, "b"
        data.rate.add_(1)
        data.table[1] = 2
        data.nested["scale"] = (1, [4.0, torch.ones(1, requires_grad=True)])
        data.list.append(3)
        data.settings["flip"] = True

    assert carried(data, theirs, change)
    assert (theirs.epoch, theirs.name, theirs.list, theirs.settings) == (3, "b", [1, 2, 3], {"flip": True})
    assert torch.equal(theirs.rate, data.rate) and np.array_equal(theirs.table, data.table)
    assert theirs.nested["scale"][1][0] == 4.0 and not theirs.nested["scale"][1][1].requires_grad


@pytest.mark.parametrize("name", ["objects", "opened"])
def test_values_that_cannot_be_sent_are_left_alone(name: str) -> None:
    data = Data()
    theirs = copy.deepcopy(data)
    kept = getattr(theirs, name)
    assert not carried(data, theirs, lambda: setattr(data, name, object()))
    assert getattr(theirs, name) is kept


def test_a_variable_of_a_function_is_sent_and_modules_and_generators_are_not() -> None:
    def changes_of(values: dict[str, Any]) -> LoaderChanges:
        data, model = Data(), nn.Linear(1, 1)
        generator = Variable(values.copy, values.update, content=np.random.default_rng(1))
        unused = Variable(lambda: {"unused": values["rate"]}, values.update, of=object())
        sent = Variable(values.copy, values.update)
        return LoaderChanges(job_of(data, model, generator, unused, sent), [data, model])

    ours, theirs = {"rate": 1}, {"rate": 1}
    changes, copied = changes_of(ours), changes_of(theirs)
    ours["rate"] = 2
    assert changes.update()
    copied.apply(changes.data)
    assert theirs == {"rate": 2}


def test_a_job_whose_data_refers_to_no_part_sends_nothing() -> None:
    changes = LoaderChanges(SimpleNamespace(parts=[Data()]), [[]])  # type: ignore[arg-type]
    assert not changes.update()
