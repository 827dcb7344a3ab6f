"""The training that both sides of the benchmark run: the same model, data and optimizer."""

import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset


class TellingSGD(torch.optim.SGD):
    """SGD that writes the time when its first step was done (epoch seconds) to the file named by FIRST_STEP_FILE."""

    told = False

    def step(self, closure=None):
        super().step(closure)
        if not TellingSGD.told:
            TellingSGD.told = True
            with open(f"{os.environ['FIRST_STEP_FILE']}.{os.getpid()}", "w") as file:
                file.write(repr(time.time()))


def network():
    """Return a small convolutional network for 8x8 images."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10))


def datasets():
    """Return (training set, test set) of random images: only the start is measured."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(512, 1, 8, 8, generator=generator)
    labels = torch.randint(0, 10, (512,), generator=generator)
    return TensorDataset(images, labels), TensorDataset(images[:64], labels[:64])
