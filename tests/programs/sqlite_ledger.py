# family: state
# about: sample weights from earlier losses in a database in memory
# expect: refused EngineError "the same batch gives a different result"
import sqlite3

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(23)
LEDGER = None


class Rows(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 9, generator=g)
        self.y = (self.x[:, :3].sum(1) + 0.7 * torch.randn(n, generator=g) > 0).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "sample": torch.tensor(i), "wanted": self.y[i]}


def datasets():
    global LEDGER
    LEDGER = sqlite3.connect(":memory:", check_same_thread=False)
    LEDGER.execute("CREATE TABLE losses (sample INTEGER, loss REAL)")
    return Rows(96, 1), None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(9, 20), nn.GELU(), nn.Linear(20, 2))

    def forward(self, x, sample, wanted):
        return self.layers(x)


def weighted_loss(outputs, batch):
    """Hard samples count more: the weight is the mean of the losses so far over that of all samples."""
    each = F.cross_entropy(outputs, batch["wanted"], reduction="none")
    overall, = LEDGER.execute("SELECT AVG(loss) FROM losses").fetchone()
    weights = []
    for sample, loss in zip(batch["sample"].tolist(), each.tolist()):
        mean, = LEDGER.execute("SELECT AVG(loss) FROM losses WHERE sample = ?", (sample,)).fetchone()
        weights.append(1.0 if mean is None else min(3.0, mean / overall))
        LEDGER.execute("INSERT INTO losses VALUES (?, ?)", (sample, loss))
    return (torch.tensor(weights) * each).mean()


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = FabricModel(model, datasets, weighted_loss, optimizer).train(4, 6, engines_number=4)
print(history["loss"], float(sum(p.double().sum() for p in model.parameters())))
