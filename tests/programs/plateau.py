# family: schedulers
# about: ReduceLROnPlateau by the validation loss
# expect: same
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(92)
g = torch.Generator().manual_seed(92)
x, noise = torch.randn(64, 4, generator=g), torch.randn(64, 1, generator=g)
train, valid = TensorDataset(x[:48], noise[:48]), TensorDataset(x[48:], noise[48:])
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
plateau = ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
history = FabricModel(
    model, lambda: (train, valid), nn.MSELoss(), optimizer, lr_scheduler=plateau
).train(5, 4, 4)
print("history", history["lr"], history["val_loss"], plateau.best)
