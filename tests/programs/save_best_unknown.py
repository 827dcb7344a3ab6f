# family: options
# about: save_best names a value that no epoch has
# expect: refused ValueError "no such value"

import torch
from torch import nn
from torch.nn import functional as F

from fabric_model import FabricModel


def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).float().mean()


def datasets():
    raise AssertionError("work was done")


torch.manual_seed(0)
model = nn.Linear(6, 2)
FabricModel(model, datasets, F.cross_entropy, torch.optim.Adam(model.parameters(), 1e-2), metrics=[accuracy]).train(
    4, 4, 4, save_best="val_f1")
