# family: ends
# about: a loop of `train(1)` that saves a checkpoint of its own after each epoch, and begins with it if it exists
# expect: same
import os
import pathlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

LAST = pathlib.Path(os.environ["RESULT_DIR"]) / "last.pt"


def datasets():
    x = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), None


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), 0.02)
start = 0
if LAST.exists():
    state = torch.load(LAST)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"]
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer)
for epoch in range(start, 4):
    history = fabric.train(1, 4, 4)
    part = LAST.with_suffix(".part")
    torch.save({"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(LAST)
print([round(t.double().sum().item(), 12) for t in model.state_dict().values()])
