# family: buffers
# about: BatchNorm stays in training mode in validation, and dropout is always on, as in pix2pix
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.train()
        return self

    def forward(self, x):
        return self.outer(F.dropout(self.norm(self.inner(x)).relu(), 0.2, training=True))


def datasets():
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :3].argmax(1)), TensorDataset(x[:24] * 3, x[:24, :3].argmax(1))


torch.manual_seed(1)
model = Net()
print(FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), 0.01)).train(4, 4, 4))
