# family: schedulers
# about: CosineAnnealingLR after every epoch
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    g = torch.Generator().manual_seed(91)
    x = torch.randn(60, 1, 6, 6, generator=g)
    y = torch.randint(0, 2, (60,), generator=g)
    return TensorDataset(x[:48], y[:48]), TensorDataset(x[48:], y[48:])


torch.manual_seed(91)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, lr_scheduler=scheduler)
print("history", fabric.train(4, 4, 4)["lr"])
