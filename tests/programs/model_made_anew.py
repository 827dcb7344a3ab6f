# family: models
# about: a model that is pickled as its configuration and its values, so a copy has new parameters
# expect: refused EngineError "makes new parameters when it is pickled"
# alone: works
import itertools

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(6)


def build(widths, state):
    net = Stack(*widths)
    net.load_state_dict(state)
    return net


class Stack(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.widths = widths
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def __reduce__(self):
        return build, (self.widths, self.state_dict())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.relu())
        return x


def datasets():
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > x[:, 1]).long()
    return TensorDataset(x[:48], y[:48]), TensorDataset(x[48:], y[48:])


net = Stack(6, 12, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
print(FabricModel(net, datasets, nn.CrossEntropyLoss(), optimizer).train(2, 4, engines_number=2)["val_loss"])
