# family: ends
# about: a loss that becomes NaN
# expect: refused Nonfinite "is not finite in step"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def unstable(outputs, labels):
    return torch.log(outputs - 0.2).pow(2).mean() + (outputs - labels).pow(2).mean()


torch.manual_seed(114)
model = nn.Sequential(nn.Linear(3, 1), nn.Softplus())
x = torch.randn(60, 3, generator=torch.Generator().manual_seed(114))
data = TensorDataset(x, torch.zeros(60, 1))
FabricModel(
    model, lambda: (data, None), unstable, torch.optim.SGD(model.parameters(), lr=0.5)
).train(4, 5, 4)
