# family: random numbers
# about: forward drops layers and mixes experts by python's random, numpy and Gumbel noise
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Deep(nn.Module):
    def __init__(self, width=10, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gate, self.experts = nn.Linear(width, 2), nn.ModuleList(nn.Linear(width, 3) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            if not self.training or random.random() > 0.3:
                x = x + torch.tanh(layer(x))
        if self.training:
            x = x + float(np.random.normal(0, 0.01))
            gate = F.gumbel_softmax(self.gate(x), tau=0.7)
        else:
            gate = self.gate(x).softmax(1)
        return sum(gate[:, i:i + 1] * expert(x) for i, expert in enumerate(self.experts))


def datasets():
    x = torch.randn(72, 10, generator=torch.Generator().manual_seed(129))
    return TensorDataset(x[:60], x[:60].argmax(1) % 3), TensorDataset(x[60:], x[60:].argmax(1) % 3)


torch.manual_seed(129)
model = Deep()
FabricModel(model, datasets, F.cross_entropy, torch.optim.AdamW(model.parameters(), lr=5e-3)).train(3, 4, 4)
