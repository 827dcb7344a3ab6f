# family: data
# about: datasets_function returns the training set alone
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def training_set():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(116))
    return TensorDataset(x, x.norm(dim=1, keepdim=True))


torch.manual_seed(116)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
history = FabricModel(
    model, training_set, nn.HuberLoss(), torch.optim.Adam(model.parameters(), lr=0.01)
).train(3, 5, 4)
print("history", sorted(history), history["loss"])
