# family: buffers
# about: targets by sample in a buffer with a function as its rule, against noise in labels
# expect: same
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(2)
N, CLASSES = 90, 4


class NoisyLabels(Dataset):
    def __init__(self, x, y, flip=0.3):
        g = torch.Generator().manual_seed(77)
        wrong = torch.rand(len(y), generator=g) < flip
        self.x = x
        self.y = torch.where(wrong, torch.randint(0, CLASSES, (len(y),), generator=g), y)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "idx": torch.tensor(i), "labels": self.y[i]}


class ELR(nn.Module):
    def __init__(self, beta=0.7, strength=3.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, CLASSES))
        self.beta, self.strength = beta, strength
        self.register_buffer("bank", torch.zeros(N, CLASSES))
        self.register_buffer("seen", torch.zeros(N, dtype=torch.int32))

    def forward(self, x, idx, labels):
        logits = self.net(x)
        loss = F.cross_entropy(logits, labels)
        if self.training:
            p = logits.detach().softmax(1).clamp(1e-4, 1 - 1e-4)
            keep = torch.where(self.seen[idx] > 0, self.beta, 0.0)[:, None]
            self.bank[idx] = keep * self.bank[idx] + (1 - keep) * p
            self.seen[idx] += 1
            agree = (self.bank[idx] * logits.softmax(1)).sum(1)
            loss = loss + self.strength * torch.log((1 - agree).clamp_min(1e-4)).mean()
        return {"loss": loss, "logits": logits}


def written_rows(before, values):
    after = before.clone()
    for value in values:
        rows = (value != before).any(1)
        after[rows] = value[rows]
    return after


def datasets():
    g = torch.Generator().manual_seed(4)
    centre = torch.randn(CLASSES, 6, generator=g) * 2
    y = torch.randint(0, CLASSES, (N + 20,), generator=g)
    x = centre[y] + torch.randn(N + 20, 6, generator=g)
    return NoisyLabels(x[:N], y[:N]), NoisyLabels(x[N:], y[N:], flip=0.0)


model = ELR()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
fabric = FabricModel(model, datasets, None, optimizer, buffers={"bank": written_rows, "seen": "sum"})
history = fabric.train(4, 6, engines_number=3, drop_last=True)
print(history["loss"], history["val_loss"], float(model.bank.double().sum()), model.seen.sum().item(),
      float(sum(p.double().sum() for p in model.parameters())))
