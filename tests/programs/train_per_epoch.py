# family: ends
# about: the script calls train() once an epoch, steps a scheduler, stops early and restores the best weights
# expect: same
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, random_split

from fabric_model import FabricModel


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(216, 6) + np.random.rand()
        self.y = (self.x[:, 0] > self.x[:, 1]).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(6), self.y[i]


def datasets():
    return random_split(Noisy(), [192, 24])


torch.manual_seed(7)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), 0.02)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer)
best, weights, bad = float("inf"), None, 0
for epoch in range(6):
    history = fabric.train(1, 4, 4)
    scheduler.step()
    print(epoch, history["loss"], history["val_loss"], optimizer.param_groups[0]["lr"])
    if history["val_loss"][-1] < best:
        best, weights, bad = history["val_loss"][-1], copy.deepcopy(model.state_dict()), 0
    else:
        bad += 1
        if bad >= 2:
            break
model.load_state_dict(weights)
print("best", best, [value.double().sum().item() for value in model.state_dict().values()])
