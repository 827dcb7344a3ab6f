# family: data
# about: every worker makes other data, for the seed is the number of its process
# expect: refused WorkerLost "the data sets differ between workers"
# alone: works
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    g = torch.Generator().manual_seed(os.getpid())
    x = torch.randn(60, 4, generator=g)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    return data, data


torch.manual_seed(132)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)
