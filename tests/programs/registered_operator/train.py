# family: models
# about: a module registers an operator of torch when it is imported; the model calls it by torch.ops
# expect: same
import operators  # noqa: F401
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.outer(torch.ops.acme.swish(self.inner(x)))


def datasets():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    return data, data


torch.manual_seed(1)
model = Net()
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())).train(4, 5, 4)
