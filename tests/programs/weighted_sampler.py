# family: data
# about: WeightedRandomSampler against rare classes, with its own length and replacement
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset, WeightedRandomSampler

from fabric_model import FabricModel


def load():
    g = torch.Generator().manual_seed(117)
    y = (torch.rand(80, generator=g) < 0.15).long()
    return torch.randn(80, 5, generator=g) + y[:, None], y


x, y = load()
weights = (1.0 / torch.bincount(y).float())[y]
sampler = WeightedRandomSampler(weights, num_samples=60, replacement=True)

torch.manual_seed(117)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
fabric = FabricModel(
    model, lambda: (TensorDataset(x, y), TensorDataset(x[:16], y[:16])), nn.CrossEntropyLoss(),
    torch.optim.SGD(model.parameters(), lr=0.1), sampler=sampler,
)
fabric.train(3, 5, 4)
