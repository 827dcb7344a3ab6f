"""Options of FabricModel and train(), and the work at the end of a step.

The tests compare with ordinary training loops, in the testing process; tests/programs covers several workers.
"""

import copy
import random

import numpy as np
import pytest
import torch
from fabric_model import FabricModel
from one_training import build, pairs, samples, trained
from torch import nn
from torch.nn import functional as F

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.surroundings import reproducible
from local_backend.elastic.worker.finishing import Nonfinite

pytestmark = pytest.mark.usefixtures("result_dir")


def by_hand(finish, epochs=3, precision=None):
    """Return the parameters after a training loop over the whole data set.

    `finish(model, optimizer)` makes the step.
    """
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = samples()
    for _ in range(epochs):
        optimizer.zero_grad()
        with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        finish(model, optimizer)
    return [parameter.detach() for parameter in model.parameters()]


def clipped_by_norm(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def clipped_by_value(model, optimizer):
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    optimizer.step()


@pytest.mark.parametrize(
    ("options", "finish"),
    [({"clip_grad_norm": 0.05}, clipped_by_norm), ({"clip_grad_value": 0.01}, clipped_by_value)],
)
def test_gradients_of_the_step_are_clipped_as_in_a_training_loop(options, finish):
    torch.testing.assert_close(trained(**options), by_hand(finish))
    assert not torch.equal(trained(**options)[0], trained()[0])


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("16-mixed", torch.float16)])
def test_precision_is_autocast_in_forward_and_loss(precision, dtype):
    expected = by_hand(lambda model, optimizer: optimizer.step(), precision=dtype)
    torch.testing.assert_close(trained(precision=precision), expected, rtol=2e-3, atol=2e-4)
    assert not torch.equal(trained(precision=precision)[0], trained()[0])


def test_accumulated_batches_are_one_step():
    torch.testing.assert_close(trained(batch=4, accumulate=4), trained(batch=16))


def test_the_average_of_the_weights_is_saved_beside_them(result_dir):
    averages = []

    def finish(model, optimizer):
        optimizer.step()
        now = copy.deepcopy(model.state_dict())
        averages[:] = [now if not averages else {k: averages[0][k].lerp(now[k], 0.25) for k in now}]

    by_hand(finish)
    trained(ema=0.75)
    saved = torch.load(result_dir / "model" / "train" / "model_epoch_final_ema.pth", weights_only=True)
    torch.testing.assert_close(dict(saved), dict(averages[0]))


# --- errors of user code


def with_step_function(step_function, **options):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fabric = FabricModel(model, pairs, F.cross_entropy, optimizer, fn_step_train=step_function(model, optimizer))
    fabric.train(1, 4, 2, **options)


def backward(model, data):
    inputs, labels = data
    model.get_optimizer().zero_grad()
    loss = model.get_loss_function()(model(inputs), labels)
    loss.backward()
    return loss


def steps_optimizer(model, optimizer):
    def step(handle, data, eva, loader, args):
        loss = backward(handle, data)
        handle.get_optimizer().step()
        return 0, loss

    return step


def steps_second_optimizer(model, optimizer):
    second = torch.optim.Adam(model[0].parameters())

    def step(handle, data, eva, loader, args):
        loss = backward(handle, data)
        second.step()
        return 0, loss

    return step


def steps_scheduler(model, optimizer):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)

    def step(handle, data, eva, loader, args):
        loss = backward(handle, data)
        scheduler.step()
        return 0, loss

    return step


def uses_scaler(call):
    def made(model, optimizer):
        scaler = torch.amp.GradScaler("cpu")

        def step(handle, data, eva, loader, args):
            loss = backward(handle, data)
            call(scaler, optimizer, loss)
            return 0, loss

        return step

    return made


@pytest.mark.parametrize(
    ("step_function", "option"),
    [
        (steps_optimizer, "accumulate="),
        (steps_second_optimizer, "optimizer={'name'"),
        (steps_scheduler, "lr_scheduler="),
        (uses_scaler(lambda scaler, optimizer, loss: scaler.scale(loss)), "precision='fp16'"),
        (uses_scaler(lambda scaler, optimizer, loss: scaler.step(optimizer)), "precision='fp16'"),
        (uses_scaler(lambda scaler, optimizer, loss: scaler.update()), "precision='fp16'"),
    ],
)
def test_optimizer_steps_within_a_batch_are_refused_with_the_right_option(step_function, option):
    with pytest.raises(EngineError) as refusal:
        with_step_function(step_function)
    assert option in str(refusal.value)


def test_the_patches_of_torch_are_removed_after_training():
    def plain(model, optimizer):
        return lambda handle, data, eva, loader, args: (0, backward(handle, data))

    with_step_function(plain)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(samples()[0]).sum().backward()
    optimizer.step()
    scheduler.step()
    assert scheduler.last_epoch == 1


# --- numbers that are not finite


def exploding(outputs, labels):
    return F.cross_entropy(outputs, labels) * float("inf")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gradient_that_is_not_finite_ends_the_training_and_is_named(accumulate):
    model = build()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(Nonfinite, match=r"gradient of 0.weight is not finite in step 1.*no checkpoint"):
        trained(model, loss=exploding, batch=4, accumulate=accumulate)
    assert all(map(torch.equal, model.state_dict().values(), before.values())), "the failed step changed the parameters"


def test_a_parameter_that_is_not_finite_ends_the_training():
    with pytest.raises(Nonfinite, match=r"parameter 0\.weight is not finite after step 1"):
        trained(rate=1e38, loss=lambda outputs, labels: F.cross_entropy(outputs, labels) * 1e6, epochs=1)


def test_on_nonfinite_skips_or_makes_steps_that_are_not_finite():
    model = build()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trained(model, loss=exploding, on_nonfinite="skip")
    assert all(map(torch.equal, model.parameters(), before))
    assert not torch.isfinite(trained(loss=exploding, on_nonfinite="ignore")[0]).all()


def test_fp16_skips_steps_that_overflow_and_lowers_its_scale():
    """Gradients overflow with the first scale, and not with a lower one."""
    model = build()
    weights = trained(model, loss=lambda outputs, labels: F.cross_entropy(outputs, labels) * 1e3, precision="fp16",
                      clip_grad_norm=1.0, epochs=40)
    assert all(torch.isfinite(weight).all() for weight in weights)
    assert not torch.equal(weights[0], build()[0].weight)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"precision": "fp8"}, ValueError, "precision must be one of"),
        ({"accumulate": 0}, ValueError, "accumulate must be at least 1"),
        ({"ema": 1.0}, ValueError, "ema must be a decay between 0 and 1"),
        ({"clip_grad_norm": "1"}, TypeError, "clip_grad_norm must be a number"),
        ({"on_nonfinite": "panic"}, ValueError, "on_nonfinite must be one of"),
        ({"buffers": {"queue": "median"}}, ValueError, r"buffers\['queue'\] must be one of"),
        ({"scheduler": None}, TypeError, "use lr_scheduler="),
        ({"shufle": False}, TypeError, "use shuffle="),
    ],
)
def test_invalid_option_values_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        trained(**options)


# --- unregistered state


class Counting(nn.Module):
    """A model that keeps a value between batches; `keep(self, x)` stores it."""

    def __init__(self, keep):
        super().__init__()
        self.net, self.keep = build(), keep
        self.calls, self.notes, self.last = 0, [], None

    def forward(self, x):
        self.keep(self, x)
        return self.net(x)


def counts(module, x):
    module.calls += 1


def notes(module, x):
    module.notes.append(float(x.mean()))


def remembers(module, x):
    module.last = x.mean() if module.last is None else module.last + x.mean()


def looks(module, x):
    module.last = x.detach()


@pytest.mark.parametrize(
    ("keep", "name"), [(counts, "model.calls"), (notes, r"len\(model.notes\)"), (remembers, "model.last")]
)
def test_state_that_batches_change_is_refused_by_name(keep, name):
    with pytest.raises(EngineError, match=f"^{name} changes while a batch is computed"):
        trained(Counting(keep))


def test_leftover_values_and_declared_local_state_are_allowed():
    expected = trained()
    assert all(map(torch.equal, trained(Counting(looks)), expected))
    assert all(map(torch.equal, trained(Counting(notes), local_state=["notes"]), expected))


calls = 0


def counting_loss(outputs, labels):
    global calls
    calls += 1
    return F.cross_entropy(outputs, labels)


def test_globals_and_closures_that_batches_change_are_refused():
    with pytest.raises(EngineError, match=r"^calls changes"):
        trained(loss=counting_loss)
    seen = []

    def appending(model, optimizer):
        def step(handle, data, eva, loader, args):
            seen.append(1)
            return 0, backward(handle, data)

        return step

    with pytest.raises(EngineError, match=r"^len\(seen in .*appending"):
        with_step_function(appending)
    with_step_function(appending, local_state=["seen"])


# --- several optimizers


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 1)


def test_each_phase_steps_its_own_optimizer_as_in_a_training_loop():
    def toward(model, batch):
        return (model.right(model.left(batch[0])) - 1).square().mean()

    def away(model, batch):
        return model.right(model.left(batch[0])).square().mean()

    by_loop = Pair()
    first, second = torch.optim.SGD(by_loop.left.parameters(), 0.1), torch.optim.Adam(by_loop.right.parameters(), 0.1)
    batch = samples()
    for _ in range(3):
        for optimizer, loss in ((first, toward), (second, away)):
            by_loop.zero_grad()
            loss(by_loop, batch).backward()
            optimizer.step()
    model = Pair()
    optimizers = {
        "left": torch.optim.SGD(model.left.parameters(), 0.1), "right": torch.optim.Adam(model.right.parameters(), 0.1)
    }
    callback = Steps()
    fabric = FabricModel(model, pairs, {"left": toward, "right": away}, optimizers, user_callback=[callback])
    fabric.train(3, 4, 4)
    assert callback.begun == [0, 1, 2], "a step of several phases was not counted once"
    step, mean, losses = callback.ended[-1]
    assert (step, mean) == (2, pytest.approx(sum(losses.values()) / 2))
    assert list(losses) == ["left", "right"]
    torch.testing.assert_close(list(model.parameters()), list(by_loop.parameters()))


def test_several_optimizers_need_a_loss_each():
    model = Pair()
    optimizers = {"left": torch.optim.SGD(model.left.parameters(), 0.1)}
    with pytest.raises(TypeError, match="dict with the same names"):
        FabricModel(model, pairs, F.mse_loss, optimizers)


# --- callbacks of steps


class Steps:
    def __init__(self):
        self.begun, self.ended = [], []

    def on_step_begin(self, step):
        self.begun.append(step)

    def on_batch_end(self, batch, logs=None):
        parts = {name.removeprefix("loss_"): value for name, value in logs.items() if name.startswith("loss_")}
        self.ended.append((batch, logs["loss"], logs.get("accuracy", parts)))


def test_hooks_of_steps_get_the_values_of_the_whole_step():
    callback = Steps()
    model = build()
    x, y = samples()
    expected = F.cross_entropy(model(x), y).item()
    right = (model(x).argmax(1) == y).float().mean().item()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    FabricModel(model, pairs, F.cross_entropy, optimizer, user_callback=[callback]).train(3, 4, 4)
    assert callback.begun == [0, 1, 2]
    assert [step for step, *_ in callback.ended] == [0, 1, 2]
    assert callback.ended[0][1:] == pytest.approx((expected, right), rel=1e-5)


class ActNorm(nn.Module):
    """A layer that sets its scale from the first batch."""

    def __init__(self):
        super().__init__()
        self.scale, self.ready = nn.Parameter(torch.ones(4)), False
        self.net = build()

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
            self.ready = True
        return self.net(x * self.scale)


def test_a_parameter_that_forward_changes_is_refused_by_name():
    with pytest.raises(EngineError, match=r"^model\.scale is a parameter and changes while a batch is computed"):
        trained(ActNorm())


class Numbering:
    """A collate function that numbers labels in the order of their first occurrence."""

    def __init__(self, known=()):
        self.numbers = {name: number for number, name in enumerate(known)}

    def __call__(self, rows):
        labels = [self.numbers.setdefault(int(y), len(self.numbers)) for _, y in rows]
        return torch.stack([x for x, _ in rows]), torch.tensor(labels)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_collate_function_that_remembers_batches_is_refused(threads):
    def train(collate, **options):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        fabric = FabricModel(model, pairs, F.cross_entropy, optimizer, fn_batch_collate=collate)
        fabric.train(1, 4, 2, threads, **options)

    with pytest.raises(EngineError, match=r"^len\(fn_batch_collate\.numbers\) changes while a batch is collated"):
        train(Numbering([2]))
    train(Numbering([0, 1, 2]))
    train(Numbering([2]), local_state=["numbers"])


def test_a_further_training_of_a_model_has_the_same_data_and_other_random_numbers():
    drawn = []

    def datasets():
        drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))
        return pairs()

    def losses(*seeds):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        fabric = FabricModel(model, datasets, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.0))
        found = []
        for seed in seeds:
            torch.manual_seed(seed)
            found += fabric.train(1, 4, 2)["loss"]
        return found

    with reproducible(1):
        first, second, third = losses(5, 5, 6)
        assert len({first, second, third}) == 3
        assert drawn[0] == drawn[1] != drawn[2]
        assert losses(5, 5) == [first, second], "the same script has the same results"
        assert losses(6) == [third], "another seed of the script begins anew"
