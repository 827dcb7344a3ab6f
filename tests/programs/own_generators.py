# family: random numbers
# about: generators of the script's own in the data set, the collate function and the model
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from fabric_model import FabricModel

rng = np.random.default_rng(5)


class Augmented(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
        self.random = random.Random(128)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] * self.random.uniform(0.8, 1.2), int(self.x[i].argmax()) % 2


def collate(samples):
    x, y = default_collate(samples)
    return x + torch.from_numpy(rng.normal(0, 0.1, x.shape).astype("float32")), y


class DropFeatures(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p, self.generator = p, torch.Generator().manual_seed(3)

    def forward(self, x):
        if not self.training:
            return x
        return x * (torch.rand(x.shape, generator=self.generator) > self.p) / (1 - self.p)


if __name__ == "__main__":
    torch.manual_seed(128)
    model = nn.Sequential(DropFeatures(0.2), nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
    FabricModel(
        model, lambda: (Augmented(60), Augmented(12)), nn.CrossEntropyLoss(),
        torch.optim.Adam(model.parameters(), 0.01), fn_batch_collate=collate,
    ).train(3, 5, 4)
