# family: options
# about: check="strict" compares the workers after every step
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(146)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
x = torch.randn(60, 4, generator=torch.Generator().manual_seed(146))
data = TensorDataset(x, (x[:, 0] > 0).long())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, check="strict").train(3, 5, 4)
