# family: data
# about: a sampler reads losses from a database that forward writes in each worker
# expect: refused WorkerLost "order of the samples"
# alone: works
import sqlite3

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, Sampler

from fabric_model import FabricModel

store = None          # opened in datasets(): a connection cannot be copied to another process


class LossStore:
    def __init__(self, n):
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.execute("CREATE TABLE losses (id INTEGER PRIMARY KEY, loss REAL NOT NULL)")
        self.db.executemany("INSERT INTO losses VALUES (?, 1.0)", [(i,) for i in range(n)])

    def record(self, ids, losses):
        self.db.executemany("UPDATE losses SET loss = ? WHERE id = ?", zip(losses.tolist(), ids.tolist()))

    def weights(self):
        return torch.tensor([loss for (loss,) in self.db.execute("SELECT loss FROM losses ORDER BY id")])


class HardExampleSampler(Sampler):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        weights = store.weights() + 0.05
        return iter(torch.multinomial(weights, len(self.data), replacement=True).tolist())


class Spirals(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 2, (n,), generator=g)
        t = torch.rand(n, generator=g) * 6 + self.y * 3.14159
        r = t / 8
        self.x = torch.stack([r * t.cos(), r * t.sin()], 1) + 0.05 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "index": i, "labels": self.y[i]}


def datasets():
    global store
    train, test = Spirals(96, 31), Spirals(32, 32)
    store = LossStore(len(train))
    return train, test


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x, index, labels):
        logits = self.body(x)
        losses = F.cross_entropy(logits, labels, reduction="none")
        if self.training:
            store.record(index, losses.detach())
        return {"loss": losses.mean(), "logits": logits}


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    fabric = FabricModel(model, datasets, None, optimizer, sampler=HardExampleSampler)
    history = fabric.train(3, 8, engines_number=4)
    print("loss    ", history["loss"])
    print("val_loss", history["val_loss"])
