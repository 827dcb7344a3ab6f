# family: batches
# about: samples are dicts; the model takes them by name, the loss gets outputs and labels
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Customers(Dataset):
    def __init__(self, first, last):
        self.rows = list(range(first, last))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.rows[i])
        age, income = torch.rand(2, generator=g)
        region = torch.randint(0, 4, (), generator=g)
        return {"age": age, "income": income, "region": region, "label": (age + income > 1).long()}


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.region = nn.Embedding(4, 3)
        self.mlp = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    def forward(self, age, income, region):
        return self.mlp(torch.cat([age[:, None], income[:, None], self.region(region)], 1))


def datasets():
    return Customers(0, 80), Customers(80, 100)


torch.manual_seed(30)
model = Tabular()
FabricModel(model, datasets, F.cross_entropy, torch.optim.Adam(model.parameters(), 1e-2)).train(3, 4, 4)
