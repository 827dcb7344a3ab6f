"""Schedulers of learning rates: the refused ones, and the transfer of their objects."""

import copy

import pytest
import torch
from callbacks import Callback
from fabric_model import FabricModel
from small import datasets, fabric, parts
from torch import nn
from torch.optim import lr_scheduler as kinds

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.recipe import Recipe
from local_backend.elastic.script.schedules import Schedules, interval
from local_backend.elastic.state.replica import Replica

pytestmark = pytest.mark.usefixtures("result_dir")

MAKE = {
    "lambda": lambda o: kinds.LambdaLR(o, lambda epoch: 0.9**epoch),
    "multiplicative": lambda o: kinds.MultiplicativeLR(o, lambda epoch: 0.95),
    "steps": lambda o: kinds.StepLR(o, 2),
    "sequential": lambda o: kinds.SequentialLR(
        o, [kinds.LinearLR(o, 0.5, total_iters=2), kinds.ExponentialLR(o, 0.9)], [3]
    ),
    "chained": lambda o: kinds.ChainedScheduler([kinds.ConstantLR(o, 0.3, 3), kinds.ExponentialLR(o, 0.9)]),
    "one cycle": lambda o: kinds.OneCycleLR(o, 0.5, total_steps=100),
    "cyclic": lambda o: kinds.CyclicLR(o, 0.01, 0.5, step_size_up=3, scale_fn=lambda x: 0.9**x),
    "warm restarts": lambda o: kinds.CosineAnnealingWarmRestarts(o, 5),
    "plateau": lambda o: kinds.ReduceLROnPlateau(o, patience=1),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.02, 4),
}


def job_with(make):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recipe = Recipe().with_options("test", {"lr_scheduler": make(optimizer)})
    return TrainingJob(model, tuple, nn.functional.mse_loss, optimizer, 1, 1, recipe=recipe)


def advance(job, times):
    """Make optimizer steps and epochs with losses that do not improve; return the parameter groups after each."""
    schedules, seen = Schedules(job), []
    for _ in range(times):
        job.optimizer.step()
        schedules.after_step()
        schedules.after_epoch({"loss": 1.0}, "loss")
        seen.append([{k: v for k, v in group.items() if k != "params"} for group in job.optimizer.param_groups])
    return copy.deepcopy(seen)


@pytest.mark.integration
@pytest.mark.parametrize("kind", MAKE)
def test_a_scheduler_continues_alike_in_a_worker_and_in_a_new_worker(kind):
    alone = job_with(MAKE[kind])
    expected = advance(alone, 9)
    assert expected[0] != expected[-1], "the scheduler changed nothing"
    sent = TrainingJob.loads(job_with(MAKE[kind]).dumps())
    assert sent.recipe.lr_scheduler[""].optimizer is sent.optimizer
    first = advance(sent, 4)
    newcomer = TrainingJob.loads(job_with(MAKE[kind]).dumps())
    Replica(newcomer).restore(Replica(sent).capture())
    assert first + advance(newcomer, 5) == expected
    driver = job_with(MAKE[kind])
    scheduler = driver.recipe.lr_scheduler[""]
    Replica(driver).restore(Replica(newcomer).capture())
    assert driver.recipe.lr_scheduler[""] is scheduler
    assert scheduler.state_dict().keys() == newcomer.recipe.lr_scheduler[""].state_dict().keys()
    assert advance(driver, 3) == advance(newcomer, 3)


def test_parts_of_a_scheduler_stay_the_objects_of_the_script():
    made = []

    def make(optimizer):
        made[:] = [kinds.LinearLR(optimizer, 0.5, total_iters=2), kinds.ExponentialLR(optimizer, 0.9)]
        return kinds.SequentialLR(optimizer, list(made), [3])

    job = job_with(make)
    worker = TrainingJob.loads(job.dumps())
    advance(worker, 5)
    Replica(job).restore(Replica(worker).capture())
    assert job.recipe.lr_scheduler[""]._schedulers == made
    assert [one.last_epoch for one in made] == [one.last_epoch for one in worker.recipe.lr_scheduler[""]._schedulers]


def test_the_recorded_rate_of_a_step_is_from_before_the_scheduler_step():
    job = job_with(MAKE["one cycle"])
    before = job.optimizer.param_groups[0]["lr"]
    advance(job, 1)
    assert job.carried.rates == {"": before}
    assert job.optimizer.param_groups[0]["lr"] != before


# --- refusals of train()


def refused(make_options, match, epochs=2, **changes):
    model, optimizer = parts()
    options = make_options(model, optimizer)
    trained = FabricModel(model, datasets, nn.functional.cross_entropy, optimizer, **options)
    with pytest.raises(ValueError, match=match):
        trained.train(epochs, 8, 2, **changes)


def test_a_scheduler_of_another_optimizer_is_refused():
    def options(model, optimizer):
        return {"lr_scheduler": kinds.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1)}

    refused(options, "lr_scheduler was built from another optimizer: build StepLR from the optimizer passed")


def test_a_name_without_an_optimizer_is_refused():
    refused(lambda m, o: {"lr_scheduler": {"g": kinds.StepLR(o, 1)}}, "use lr_scheduler=scheduler")


def test_an_interval_without_a_scheduler_is_refused():
    refused(lambda m, o: {"lr_scheduler_interval": "step"}, "no effect without lr_scheduler")


def test_a_cycle_within_a_sequence_is_stepped_per_step():
    made = job_with(
        lambda o: kinds.SequentialLR(o, [kinds.ConstantLR(o), kinds.OneCycleLR(o, 0.5, total_steps=9)], [2])
    )
    assert interval(made.recipe.lr_scheduler[""], made.recipe) == "step"


def test_a_plateau_scheduler_per_step_is_refused():
    refused(
        lambda m, o: {"lr_scheduler": kinds.ReduceLROnPlateau(o), "lr_scheduler_interval": "step"},
        "use lr_scheduler_interval='epoch'",
    )


def test_a_step_schedule_in_asynchronous_mode_is_refused():
    refused(
        lambda m, o: {"lr_scheduler": kinds.OneCycleLR(o, 0.5, total_steps=100)},
        "mode='async' does not support",
        mode="async",
    )


@pytest.mark.parametrize("make", [MAKE["steps"], MAKE["plateau"], MAKE["sequential"]])
def test_a_scheduler_that_is_never_stepped_is_refused(make):
    kept = []
    refused(lambda m, o: kept.append(make(o)) or {}, r"the training would never step it: pass it as lr_scheduler=")


class Stepping(Callback):
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def on_epoch_end(self, epoch, save_model=False):
        self.scheduler.step()


def test_a_scheduler_that_a_callback_steps_is_accepted():
    model, optimizer = parts()
    scheduler = kinds.StepLR(optimizer, 1, 0.5)
    trained = FabricModel(
        model, datasets, nn.functional.cross_entropy, optimizer, user_callback=[Stepping(scheduler)]
    )
    trained.train(2, 8, 2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_one_epoch_at_a_time_leaves_the_scheduler_to_the_script():
    trained, _ = fabric()
    scheduler = kinds.StepLR(trained._job.optimizer, 1)
    for _ in range(2):
        trained.train(1, 8, 2)
        scheduler.step()
    assert trained._job.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_one_cycle_must_be_as_long_as_the_training():
    trained, _ = fabric()
    scheduler = kinds.OneCycleLR(trained._job.optimizer, 0.5, total_steps=3)
    with pytest.raises(EngineError, match="OneCycleLR ends after 3 steps, but the training has 4 optimizer steps"):
        trained.train(2, 8, 2, lr_scheduler=scheduler)


def test_one_cycle_counts_a_step_of_several_phases_once():
    model, _ = parts()
    first, last = (torch.optim.SGD(model[i].parameters(), 0.1) for i in (0, 2))
    optimizers = {"first": first, "last": last}
    scheduler = kinds.OneCycleLR(optimizers["first"], 0.5, total_steps=4)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    trained = FabricModel(model, datasets, {"first": loss, "last": loss}, optimizers, lr_scheduler={"first": scheduler})
    history = trained.train(2, 8, 2)
    assert scheduler.last_epoch == 4
    assert history["lr_last"] == [0.1, 0.1]
    assert history["lr_first"][0] != history["lr_first"][1]
