# family: schedulers
# about: a scheduler as libraries write them, with step(epoch) and step_update(number), in a callback
# expect: same
import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel

torch.manual_seed(9)


class WarmCosine:
    """Not a class of torch.optim.lr_scheduler: it holds the optimizer and computes each rate from a number."""

    def __init__(self, optimizer, epochs, updates, warmup):
        self.optimizer, self.epochs, self.updates, self.warmup = optimizer, epochs, updates, warmup
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.seen = []
        self.step_update(0)

    def _set(self, factor):
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def step(self, epoch, metric=None):
        self.seen.append(round(metric, 3))
        self._set(0.5 * (1 + math.cos(math.pi * epoch / self.epochs)))

    def step_update(self, number):
        if number < self.warmup:
            self._set((number + 1) / self.warmup)

    def state_dict(self):
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}


class Scheduled(Callback):
    def __init__(self, scheduler):
        self.scheduler, self.updates = scheduler, 0

    def on_step_end(self, step, logs=None):
        self.updates += 1
        self.scheduler.step_update(self.updates)

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        self.scheduler.step(epoch + 1, metric=logs["val_loss"])


def datasets():
    x = torch.randn(100, 6, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > x[:, 1]).long()
    return TensorDataset(x[:80], y[:80]), TensorDataset(x[80:], y[80:])


model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters()}], 0.1)
scheduled = Scheduled(WarmCosine(optimizer, epochs=4, updates=20, warmup=5))
history = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=scheduled).train(
    4, 4, engines_number=4)
print([f"{rate:.6f}" for rate in history["lr"]], scheduled.updates, scheduled.scheduler.seen)
