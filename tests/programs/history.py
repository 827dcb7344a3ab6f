# family: ends
# about: the returned history, validated in every second epoch
# expect: same
import json

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def rmse(outputs, labels):
    return F.mse_loss(outputs, labels).sqrt()


def datasets():
    g = torch.Generator().manual_seed(104)
    x = torch.rand(64, 3, generator=g)
    y = (x * torch.tensor([1.0, -2.0, 0.5])).sum(1, keepdim=True)
    return TensorDataset(x[:50], y[:50]), TensorDataset(x[50:], y[50:])


if __name__ == "__main__":
    torch.manual_seed(104)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = FabricModel(model, datasets, nn.MSELoss(), optimizer, metrics=[rmse]).train(4, 4, 3, validation_freq=2)
    print("history", json.dumps(history, sort_keys=True))
