# family: callbacks
# about: a callback makes training harder at the beginning of each epoch: more dropout, another temperature
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, 24), nn.Dropout(0.0), nn.Linear(24, 3)
        self.temperature = 2.0

    def forward(self, x):
        return self.head(self.drop(F.relu(self.body(x)))) / self.temperature


class Curriculum(Callback):
    def on_epoch_begin(self, epoch):
        self.model.drop.p = min(0.5, 0.2 * epoch)
        self.model.temperature = 2.0 / (1 + epoch)


def datasets():
    x = torch.randn(70, 6, generator=torch.Generator().manual_seed(109))
    y = x.argmax(1) % 3
    return TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])


torch.manual_seed(109)
model = Net()
FabricModel(
    model, datasets, F.cross_entropy, torch.optim.Adam(model.parameters(), 0.01), user_callback=[Curriculum()]
).train(4, 5, 4)
