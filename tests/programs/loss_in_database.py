# family: state
# about: the loss weights classes by counts in a database that only the process has, after a first epoch
# expect: refused EngineError "result"
import sqlite3

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(11)
x = torch.randn(96, 6)
y = (x[:, 0] > 0.7).long() + (x[:, 1] > 1.0).long()


class Counts:
    """Counts labels in a database, so that other tools can look at them."""

    connection = None

    @classmethod
    def add(cls, labels):
        if cls.connection is None:
            cls.connection = sqlite3.connect(":memory:", check_same_thread=False)
            cls.connection.execute("CREATE TABLE seen (label INTEGER)")
        cls.connection.executemany("INSERT INTO seen VALUES (?)", [(int(label),) for label in labels])

    @classmethod
    def weights(cls):
        rows = dict(cls.connection.execute("SELECT label, COUNT(*) FROM seen GROUP BY label"))
        total = sum(rows.values())
        return torch.tensor([total / (3 * rows.get(label, 1)) for label in range(3)]) if total > 64 else torch.ones(3)


def loss_function(logits, labels):
    Counts.add(labels)
    return F.cross_entropy(logits, labels, weight=Counts.weights())


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
history = FabricModel(model, lambda: (TensorDataset(x, y), None), loss_function, optimizer).train(3, 8, 4)
print(history["loss"])
