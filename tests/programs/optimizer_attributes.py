# family: optimizers
# about: an optimizer keeps values by parameter, module and id, in a deque, an array, an object; a callback by its id
# expect: same
from collections import defaultdict, deque

import numpy as np
import torch
from callbacks import Callback
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Mean:
    def __init__(self):
        self.value, self.count = 0.0, 0

    def add(self, number):
        self.count += 1
        self.value += (number - self.value) / self.count
        return self.value


class Careful(torch.optim.SGD):
    def __init__(self, model, lr):
        super().__init__(model.parameters(), lr=lr, momentum=0.9)
        self.factors = {id(p): 0.5 ** (2 - i) for i, layer in enumerate(model) for p in layer.parameters()}
        self.norms, self.total = deque(maxlen=5), defaultdict(float)
        self.last, self.mean = np.zeros(3), Mean()
        self.by_layer = {layer: torch.zeros(1) for layer in model if isinstance(layer, nn.Linear)}
        self.slow, self.slower = {}, {}

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = float(torch.stack([p.grad.norm() for p in parameters]).norm())
        self.norms.append(norm)
        self.total["norm"] = 0.9 * self.total["norm"] + norm
        self.last = np.roll(self.last, 1)
        self.last[0] = norm
        scale = float(np.mean(self.norms)) / (norm + self.total["norm"] + self.mean.add(norm) + float(self.last.std()))
        for layer, size in self.by_layer.items():
            size.mul_(0.9).add_(layer.weight.grad.norm())
            layer.weight.grad.div_(1 + size)
        for p in parameters:
            p.grad.mul_(scale * self.factors.get(id(p), 1.0))
        super().step()
        for p in parameters:
            p.lerp_(self.slow.setdefault(p, p.clone()), 0.5)
            p.lerp_(self.slower.setdefault(id(p), p.clone()), 0.1)
            self.slow[p].lerp_(p, 0.3)
            self.slower[id(p)].lerp_(p, 0.1)


class Steps(Callback):
    counts = {}

    def __init__(self):
        super().__init__()
        self.counts[id(self)] = 0

    def on_step_end(self, step, logs=None):
        self.counts[id(self)] += 1


def datasets():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    return data, data


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
steps = Steps()
FabricModel(model, datasets, nn.CrossEntropyLoss(), Careful(model, 2.0), user_callback=[steps]).train(4, 5, 4)
print(steps.counts[id(steps)])
