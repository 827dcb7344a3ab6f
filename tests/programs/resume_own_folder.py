# family: ends
# about: `resume_from` names the folder of the checkpoints of the same job, if it has some
# expect: same
import os
import pathlib

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

FOLDER = pathlib.Path(os.environ["RESULT_DIR"]) / "model" / "train"


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), None


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), 0.02)
before = FOLDER if list(FOLDER.glob("model_epoch_?.pth")) else None
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer)
print(fabric.train(5, 4, 4, resume_from=before)["loss"])
