# family: callbacks
# about: callbacks keep their state in dataclasses with slots, which the loss reads
# expect: same
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from callbacks import Callback
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


@dataclass(slots=True)
class Schedule:
    temperature: float = 1.0
    smoothing: float = 0.0
    seen: list = field(default_factory=list)


@dataclass(slots=True)
class Progress:
    steps: int = 0
    best: float = float("inf")


class Limits(NamedTuple):
    most: float = 0.2
    rate: float = 0.01


SCHEDULE, LIMITS = Schedule(), Limits()


def loss(outputs, labels):
    return F.cross_entropy(outputs / SCHEDULE.temperature, labels, label_smoothing=SCHEDULE.smoothing)


class Anneal(Callback):
    def __init__(self):
        super().__init__()
        self.progress = Progress()

    def on_batch_end(self, batch, logs=None):
        self.progress.steps += 1
        SCHEDULE.smoothing = min(LIMITS.most, LIMITS.rate * self.progress.steps)

    def on_epoch_end(self, epoch, logs=None):
        SCHEDULE.temperature *= 0.8
        SCHEDULE.seen.append(epoch)
        self.progress.best = min(self.progress.best, logs["loss"])


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    anneal = Anneal()
    FabricModel(model, datasets, loss, optimizer, user_callback=anneal).train(4, 4, 4)
    print(anneal.progress, SCHEDULE)
