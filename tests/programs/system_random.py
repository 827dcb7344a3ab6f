# family: random numbers
# about: a data set that draws from the operating system, which nothing can repeat
# expect: refused EngineError "SystemRandom"
import random

import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Secret(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n))
        self.random = random.SystemRandom()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] * self.random.uniform(0.9, 1.1), i % 2


torch.manual_seed(131)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
FabricModel(model, lambda: (Secret(60), Secret(12)), nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)
