# family: ends
# about: a loop over folds with a new model each; finished folds are read from a file of results
# expect: same
import json
import os
import pathlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from fabric_model import FabricModel

PATH = pathlib.Path(os.environ["RESULT_DIR"]) / "folds.json"
x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long()


def train_fold(k):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1)).tolist()
    test, train = order[k * 20:k * 20 + 20], order[:k * 20] + order[k * 20 + 20:]
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    data = TensorDataset(x, y)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    fabric = FabricModel(model, lambda: (Subset(data, train), Subset(data, test)), F.cross_entropy, optimizer)
    return fabric.train(4, 3, 4)["val_loss"]


results = json.loads(PATH.read_text()) if PATH.exists() else {}
for fold in range(3):
    if str(fold) not in results:
        results[str(fold)] = train_fold(fold)
        part = PATH.with_suffix(".part")
        part.write_text(json.dumps(results))
        part.replace(PATH)
print(results)
