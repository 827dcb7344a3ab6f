# family: buffers
# about: MoCo: keys written into a queue at a pointer; buffers= says how they combine
# expect: same
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel

QUEUE = 32


class TwoViews(Dataset):
    def __init__(self, n=64):
        self.x = torch.randn(n, 8, generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return (self.x[i] + 0.1 * torch.randn(8), self.x[i] + 0.1 * torch.randn(8)), 0


class MoCo(nn.Module):
    def __init__(self, dim=6, temperature=0.2):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, dim))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.temperature = temperature
        self.register_buffer("queue", F.normalize(torch.randn(dim, QUEUE), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        at = int(self.pointer)
        places = torch.arange(at, at + len(keys)) % QUEUE
        self.queue[:, places] = keys.T
        self.pointer[0] = (at + len(keys)) % QUEUE

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.key(b), dim=1)
        positive, negative = (q * k).sum(1, keepdim=True), q @ self.queue.clone()
        if self.training:
            self.enqueue(k)
        return torch.cat([positive, negative], 1) / self.temperature


torch.manual_seed(60)
model = MoCo()
fabric = FabricModel(
    model, lambda: (TwoViews(64), TwoViews(8)), F.cross_entropy, torch.optim.SGD(model.query.parameters(), lr=0.1),
    buffers={"queue": ("concatenate", 1), "pointer": ("sum", QUEUE)},
)
fabric.train(3, 4, 4)
