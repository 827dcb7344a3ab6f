# family: callbacks
# about: a callback takes the learning rate of each epoch from a generator function
# expect: refused EngineError "Rates.rates is a generator"
import math

import torch
from callbacks import Callback
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def cosine(peak, epochs):
    for epoch in range(epochs + 1):
        yield peak * 0.5 * (1 + math.cos(math.pi * epoch / epochs))


class Rates(Callback):
    def __init__(self, optimizer):
        super().__init__()
        self.optimizer = optimizer

    def on_train_begin(self, logs=None):
        self.rates = cosine(0.05, 4)

    def on_epoch_begin(self, epoch, logs=None):
        for group in self.optimizer.param_groups:
            group["lr"] = next(self.rates)


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    FabricModel(model, datasets, F.cross_entropy, optimizer, user_callback=Rates(optimizer)).train(4, 4, 4)
