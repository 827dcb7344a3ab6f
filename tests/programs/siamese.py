# family: vision
# about: a Siamese network; samples are ((a, b), same)
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Pairs(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.points = torch.randn(count, 8, generator=g)
        self.kind = torch.randint(0, 3, (count,), generator=g)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        j = int(torch.randint(0, len(self), ()))  # another partner in every epoch
        return (self.points[i], self.points[j]), (self.kind[i] == self.kind[j]).float()


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, a, b):
        return F.pairwise_distance(self.encoder(a), self.encoder(b))


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, distance, same):
        return (same * distance**2 + (1 - same) * F.relu(self.margin - distance) ** 2).mean()


torch.manual_seed(5)
model = Siamese()
fabric = FabricModel(
    model, lambda: (Pairs(64, 1), Pairs(16, 2)), ContrastiveLoss(), torch.optim.Adam(model.parameters(), 0.01)
)
fabric.train(3, 4, 4)
