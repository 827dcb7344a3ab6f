"""A driver that starts after the death of another one recognizes the trainings that this driver has recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from local_backend.elastic.driver import record as records
from local_backend.elastic.driver.record import TrainingRecord
from local_backend.elastic.hub.hub import Course
from local_backend.elastic.script.job import TrainingJob

DATA = TensorDataset(torch.arange(12.0)[:, None], torch.arange(12.0)[:, None])
present = 0


def of_fold(fold: int) -> Callable[[], Any]:
    part = [i for i in range(12) if i % 3 != fold]
    return lambda: Subset(DATA, part)


def of_global() -> Any:
    return chosen()


def chosen() -> Any:
    return Subset(DATA, [present, present + 1])


def of_time() -> Callable[[], Any]:
    now = time.monotonic_ns()
    return lambda: (DATA, now)


@pytest.fixture
def driver(tmp_path, monkeypatch) -> Callable[[], Callable[..., TrainingRecord]]:
    """A function that starts the next driver of a job, and returns a function that begins a training in it."""
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))

    def begin(
        datasets: Callable[[], Any] = lambda: DATA, weight: float = 0.0, epochs: int = 2, seed: int = 1, count: int = 0,
    ) -> TrainingRecord:
        torch.manual_seed(seed)
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, weight)
        job = TrainingJob(model, datasets, None, torch.optim.SGD(model.parameters(), 0.1), 1, 4)
        course = Course(
            workers=1, epochs=epochs, batch=4, step_samples=4, seed=seed + count, validation_freq=1, checkpoint_freq=1,
            test_chunk=1, limits=(),
        )
        return TrainingRecord.open(course, "exact", job, count)

    def start() -> Callable[..., TrainingRecord]:
        monkeypatch.setattr(records, "_trainings", 0)
        return begin

    return start


def test_a_driver_that_skips_finished_folds_continues_the_fold_that_was_interrupted(driver):
    train = driver()
    train(of_fold(0)).end()
    second = train(of_fold(1))
    train = driver()
    assert train(of_fold(1)).folder == second.folder
    assert train(of_fold(2)).folder not in {second.folder, None}


def test_a_driver_does_not_take_the_finished_fold_for_a_fold_that_had_not_begun(driver):
    first = driver()(of_fold(0))
    first.end()
    assert driver()(of_fold(1)).folder != first.folder


def test_values_of_global_names_tell_trainings_apart(driver, monkeypatch):
    train = driver()
    train(of_global).end()
    monkeypatch.setitem(globals(), "present", 4)
    second = train(of_global)
    assert driver()(of_global).folder == second.folder


def test_equal_trainings_are_recognized_in_their_order(driver):
    train = driver()
    folders = [train().folder for _ in range(3)]
    train = driver()
    assert [train().folder for _ in range(3)] == folders


def test_a_training_from_loaded_weights_has_the_seed_of_its_record(driver):
    train = driver()
    train(weight=0.0).end()
    second = train(weight=1.0, count=1)
    found = driver()(weight=1.0)
    assert (found.folder, found.course.seed, found.count) == (second.folder, second.course.seed, 1)


@pytest.mark.parametrize("other", [{"epochs": 1}, {"weight": 1.0}])
def test_another_training_than_the_interrupted_one_starts_from_its_beginning_with_a_warning(driver, capsys, other):
    first = driver()()
    second = driver()(**other)
    assert second.folder != first.folder and not first.folder.exists()
    assert capsys.readouterr().out.startswith("WARNING: the driver started again")


def test_a_seed_from_the_clock_continues_with_the_seed_of_the_first_driver(driver, capsys):
    first = driver()(seed=1, weight=0.5)
    second = driver()(seed=2, weight=0.7)
    assert (second.folder, second.course.seed) == (first.folder, 1)
    assert not capsys.readouterr().out


def test_an_interrupted_training_may_refer_to_the_time(driver):
    first = driver()(of_time())
    assert driver()(of_time()).folder == first.folder
