# family: state
# about: the loss has a factor that is another one in each process
# alone: works
# expect: refused EngineError "workers compute different results for the same batch"
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(11)
x = torch.randn(96, 6)
y = (x[:, 0] > 0.7).long() + (x[:, 1] > 1.0).long()


def loss_function(logits, labels):
    return F.cross_entropy(logits, labels) * (1 + os.getpid() * 1e-6)


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
history = FabricModel(model, lambda: (TensorDataset(x, y), None), loss_function, optimizer).train(3, 8, 4)
print(len(history["loss"]))
