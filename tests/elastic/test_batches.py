"""Batches of every shape: pairs, tuples, named tuples, dicts and single tensors. Models with a loss of their own."""

import typing

import pytest
import torch
from one_training import SAMPLES, build, samples, trained
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from local_backend.elastic.errors import EngineError

pytestmark = pytest.mark.usefixtures("result_dir")


class Rows(Dataset):
    """Samples that `shape` builds from (x, y)."""

    def __init__(self, shape):
        self.x, self.y = samples()
        self.shape = shape

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return self.shape(self.x[i], self.y[i])


class Parts(nn.Module):
    """A model that takes its input in two parts."""

    def __init__(self):
        super().__init__()
        self.net = build()

    def forward(self, left, right):
        return self.net(torch.cat([left, right], 1))


class One(nn.Module):
    """A model that takes its input as one argument, a pair or a dict."""

    def __init__(self):
        super().__init__()
        self.net = build()

    def forward(self, inputs):
        left, right = inputs.values() if isinstance(inputs, dict) else inputs
        return self.net(torch.cat([left, right], 1))


class WithLoss(nn.Module):
    """A model that computes its own loss, in an output of some form."""

    def __init__(self, form):
        super().__init__()
        self.net = build()
        self.form = form

    def forward(self, left, right, labels=None):
        logits = self.net(torch.cat([left, right], 1))
        return self.form(F.cross_entropy(logits, labels), logits)


def two(x, y):
    return (x[:2], x[2:]), y


def flat(x, y):
    return x[:2], x[2:], y


def named(x, y):
    return {"left": x[:2], "right": x[2:], "labels": y}


class Output:
    def __init__(self, loss, logits):
        self.loss, self.logits = loss, logits


@pytest.mark.integration
@pytest.mark.parametrize(
    ("model", "shape", "loss"),
    [
        (Parts, two, F.cross_entropy),
        (Parts, flat, F.cross_entropy),
        (Parts, named, F.cross_entropy),
        (One, two, F.cross_entropy),
        (One, named, F.cross_entropy),
        (lambda: WithLoss(Output), named, None),
        (lambda: WithLoss(lambda loss, logits: {"loss": loss, "logits": logits}), named, None),
        (lambda: WithLoss(lambda loss, logits: (loss, logits)), named, None),
        (lambda: WithLoss(lambda loss, logits: loss), named, None),
    ],
)
def test_batches_of_every_shape_train_alike(model, shape, loss):
    rows = Rows(shape)
    assert all(map(torch.equal, trained(model(), lambda: (rows, rows), loss), trained()))


def test_a_batch_that_is_one_tensor_is_its_own_label():
    x, _ = samples()
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    before = F.mse_loss(model(x), x).item()
    for shape in (lambda x, y: x, lambda x, y: (x,)):
        trained(model, lambda shape=shape: (Rows(shape), Rows(shape)), F.mse_loss, epochs=20)
    assert F.mse_loss(model(x), x).item() < before


def test_a_model_without_a_loss_is_refused():
    with pytest.raises(EngineError, match="the model returned a dict without a loss"):
        trained(WithLoss(lambda loss, logits: {"logits": logits}), lambda: (Rows(named), Rows(named)), None)


def test_a_wrapped_model_is_unwrapped():
    model = build()
    weights = trained(nn.DataParallel(model))
    assert all(map(torch.equal, weights, trained()))
    assert all(map(torch.equal, weights, model.parameters()))


class NamedPair(typing.NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


class NamedParts(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize(
    ("model", "shape"),
    [(build, NamedPair), (Parts, lambda x, y: NamedParts(x[:2], x[2:], y))],
)
def test_named_tuples_are_batches_of_named_inputs(model, shape):
    assert all(map(torch.equal, trained(model(), lambda: (Rows(shape), Rows(shape))), trained()))
