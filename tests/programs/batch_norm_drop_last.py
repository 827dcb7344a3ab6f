# family: data
# about: the same with drop_last=True
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(65, 6, generator=torch.Generator().manual_seed(121))
    y = (x[:, 0] > 0).long()
    return TensorDataset(x, y), TensorDataset(x[:8], y[:8])


torch.manual_seed(121)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.01))
fabric.train(3, 4, 4, drop_last=True)
