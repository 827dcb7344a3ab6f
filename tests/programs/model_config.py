# family: callbacks
# about: a callback changes a configuration object that the model holds
# expect: same
import argparse
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


torch.manual_seed(0)


@dataclass
class Inner:
    noise: float = 0.5


@dataclass
class Config:
    drop: float = 0.5
    temperature: float = 1.0
    inner: Inner = field(default_factory=Inner)


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.flags = config, argparse.Namespace(gain=1.0)
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x):
        h = F.dropout(F.relu(self.a(x)), self.config.drop, self.training) * self.flags.gain
        if self.training:
            h = h + self.config.inner.noise * torch.randn_like(h)
        return self.b(h) / self.config.temperature


class Anneal:
    def on_step_end(self, step, logs):
        self.model.config.temperature *= 0.96
        self.model.flags.gain *= 1.01

    def on_epoch_begin(self, epoch):
        self.model.config.drop = 0.5 - 0.1 * epoch
        self.model.config.inner.noise *= 0.5


model = Net(Config())
optimizer = torch.optim.Adam(model.parameters(), 0.02)
FabricModel(model, datasets, F.cross_entropy, optimizer, user_callback=Anneal()).train(4, 4, 4)
print(model.config)
