import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import config


class Noisy(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        return x + config.OPTIONS["noise"] * torch.randn(6), int(x.argmax()) % 3


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, config.HIDDEN), nn.Linear(config.HIDDEN, 3)

    def forward(self, x):
        return self.b(F.dropout(F.relu(self.a(x)), config.OPTIONS["dropout"], self.training))


def datasets():
    return Noisy(60), Noisy(12)


def loss(outputs, labels):
    return F.cross_entropy(outputs, labels, label_smoothing=config.OPTIONS["smoothing"])
