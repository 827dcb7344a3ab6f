"""A small training in the testing process itself, and loggers of every generation of the API."""

from __future__ import annotations

import torch
from callbacks import LoggerCallback
from fabric_model import FabricModel
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

SAMPLES = 22
TEST_SAMPLES = 9


def datasets():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, 4, generator=generator), torch.arange(SAMPLES) % 3
    return TensorDataset(x, y), TensorDataset(x[:TEST_SAMPLES], y[:TEST_SAMPLES])


def parts():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def fabric(**changes):
    model, optimizer = parts()
    return FabricModel(model, datasets, F.cross_entropy, optimizer, **changes), model


class OldLogger(LoggerCallback):
    def __init__(self):  # deliberately without super().__init__()
        self.train, self.test, self.begun, self.ended = [], [], 0, 0

    def on_train_begin(self):
        self.begun += 1

    def log_train_metrics(self, loss, acc, completed_batch, worker=0):
        self.train.append((loss, acc, completed_batch, worker))

    def log_test_metrics(self, loss, acc, completed_batch, worker=0):
        self.test.append((loss, acc, completed_batch))

    def on_train_end(self):
        self.ended += 1


class NewLogger:
    """A logger of the newest generation of the API: no base class."""

    def __init__(self):
        self.train, self.test = [], []

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.train.append((metrics, iteration, epoch, workers))

    def log_test_metrics(self, metrics, iteration, epoch):
        self.test.append((metrics, iteration, epoch))


class MiddleLogger(LoggerCallback):
    def __init__(self):
        self.train, self.test = [], []

    def log_train_metrics(self, metrics, completed_batch, epoch, worker=0):
        self.train.append((metrics, completed_batch, epoch, worker))

    def log_test_metrics(self, metrics, completed_batch, epoch):
        self.test.append((metrics, completed_batch, epoch))
