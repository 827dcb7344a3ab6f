# family: callbacks
# about: a callback replaces an activation during training
# expect: refused EngineError "has replaced the module model.act"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act, self.b = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)

    def forward(self, x):
        return self.b(self.act(self.a(x)))


class Swap:
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model.act = nn.GELU()


model = Net()
optimizer = torch.optim.Adam(model.parameters(), 0.02)
FabricModel(model, datasets, F.cross_entropy, optimizer, user_callback=Swap()).train(4, 4, 4)
