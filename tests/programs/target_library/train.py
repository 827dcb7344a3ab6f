# family: modules
# about: a library that pip install --target has put beside the script counts its calls in a global
# expect: same
import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "vendor"))
from toy_layers import gated

torch.manual_seed(8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gate, self.out = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.out(gated(self.inner(x), self.gate(x)))


def datasets():
    x = torch.randn(90, 8, generator=torch.Generator().manual_seed(2))
    y = (x.sum(1) > 0).long()
    return TensorDataset(x[:72], y[:72]), TensorDataset(x[72:], y[72:])


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
history = FabricModel(net, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 6, engines_number=4)
print([f"{value:.6f}" for value in history["val_loss"]])
