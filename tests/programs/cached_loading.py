# family: data
# about: samples come through a cached function of the main script
# expect: same
from functools import cache

import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(0)
table = torch.randn(96, 8)


@cache
def load(i):
    return table[i].softmax(0)


class Rows(Dataset):
    def __len__(self):
        return len(table)

    def __getitem__(self, i):
        return load(i), int(table[i].sum() > 0)


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
history = FabricModel(model, lambda: (Rows(), None), nn.CrossEntropyLoss(), optimizer).train(3, 4, engines_number=4)
print(history["loss"])
