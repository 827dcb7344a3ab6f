# family: state
# about: backward of an autograd function advances an itertools.count
# expect: refused EngineError "GradientReversal"
import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

EPOCHS, BATCH, SAMPLES = 3, 8, 96
BATCHES = SAMPLES // BATCH


class GradientReversal(torch.autograd.Function):
    steps = itertools.count()          # one per training batch: validation runs no backward
    warmup = BATCHES                   # the first epoch trains the classifier alone
    total = BATCHES * (EPOCHS - 1)

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        p = max(0, next(GradientReversal.steps) - GradientReversal.warmup) / GradientReversal.total
        strength = 2.0 / (1.0 + math.exp(-10.0 * p)) - 1.0
        return -strength * grad


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.classifier = nn.Linear(16, 3)
        self.domain = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x, domain, labels):
        h = self.features(x)
        logits = self.classifier(h)
        loss = F.cross_entropy(logits, labels) + F.cross_entropy(self.domain(GradientReversal.apply(h)), domain)
        return {"loss": loss, "logits": logits}


class TwoDomains(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (n,), generator=g)
        self.d = torch.randint(0, 2, (n,), generator=g)
        centers = torch.randn(3, 12, generator=torch.Generator().manual_seed(99))
        self.x = centers[self.y] + 1.5 * self.d[:, None] + torch.randn(n, 12, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "domain": self.d[i], "labels": self.y[i]}


def datasets():
    return TwoDomains(SAMPLES, 21), TwoDomains(32, 22)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = DANN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    history = FabricModel(model, datasets, None, optimizer).train(EPOCHS, BATCH, engines_number=4)
    print("loss    ", history["loss"])
    print("val_loss", history["val_loss"])
