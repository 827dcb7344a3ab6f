# family: ends
# about: early stopping by the validation loss, which cannot improve
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(100)
g = torch.Generator().manual_seed(100)
train = TensorDataset(torch.randn(48, 6, generator=g), torch.randint(0, 2, (48,), generator=g))
valid = TensorDataset(torch.randn(16, 6, generator=g), torch.randint(0, 2, (16,), generator=g))
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
fabric = FabricModel(model, lambda: (train, valid), nn.CrossEntropyLoss(), optimizer, early_stopping=2)
history = fabric.train(20, 4, 4)
assert len(history["val_loss"]) < 20
print("history", history["val_loss"])
