# family: options
# about: accumulate=2 with a last step that is not full
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(80)
model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
x = torch.randn(86, 6, generator=torch.Generator().manual_seed(10))
train = TensorDataset(x, (x[:, 2] > 0).long())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
FabricModel(model, lambda: (train, None), F.cross_entropy, optimizer, accumulate=2).train(3, 4, 3)
