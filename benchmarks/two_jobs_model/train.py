"""A training whose steps take about 50 ms. It runs until it is stopped."""

import time

import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import Dataset


class Samples(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        time.sleep(0.003)
        return torch.randn(256), i % 10


def datasets():
    return Samples(), Samples()


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
FabricModel(model, datasets, nn.functional.cross_entropy, optimizer).train(1000, 16, 4, validation_freq=0)
