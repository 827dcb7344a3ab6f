# family: data
# about: a data set that reads all samples of a batch by one query: `__getitems__` alone
# expect: same
import sqlite3

import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Rows(Dataset):
    def __init__(self, n, seed):
        rows = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)).tolist()
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.execute("create table rows (id integer primary key, a, b, c, d, y)")
        self.db.executemany("insert into rows values (?, ?, ?, ?, ?, ?)", [(i, *row) for i, row in enumerate(rows)])
        self.n = n

    def __len__(self):
        return self.n

    def __getitems__(self, ids):
        marks = ",".join("?" * len(ids))
        found = {row[0]: row[1:] for row in self.db.execute(f"select * from rows where id in ({marks})", ids)}
        return [(torch.tensor(found[i][:4]), torch.tensor(found[i][4:])) for i in ids]


def main():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    FabricModel(model, lambda: (Rows(50, 0), Rows(10, 1)), nn.MSELoss(), torch.optim.Adam(model.parameters(), 0.01),
                ).train(3, 5, 4)


if __name__ == "__main__":
    main()
