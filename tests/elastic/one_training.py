"""A small training in the testing process, for tests that compare it with an ordinary training loop."""

import torch
from fabric_model import FabricModel
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

SAMPLES = 16


def samples():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, 4, generator=generator), torch.arange(SAMPLES) % 3


def pairs():
    return TensorDataset(*samples()), TensorDataset(*samples())


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(model=None, datasets=pairs, loss=F.cross_entropy, *, batch=SAMPLES, epochs=3, rate=0.1, **options):
    """Return the parameters of a model after training.

    Each step covers `batch` samples, in one batch unless `accumulate` divides it.
    """
    model = model or build()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    FabricModel(model, datasets, loss, optimizer).train(epochs, batch, 1, **options)
    return [parameter.detach().clone() for parameter in model.parameters()]
