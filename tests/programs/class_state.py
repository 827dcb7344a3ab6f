# family: callbacks
# about: callbacks move class attributes that the loss, the model and the data set read
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


torch.manual_seed(0)


class Config:
    temperature = 1.0
    seen = []


class Net(nn.Module):
    drop = 0.5

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.b(F.dropout(F.relu(self.a(x)), type(self).drop, self.training))


def loss(outputs, labels):
    return F.cross_entropy(outputs / Config.temperature, labels) + 0.001 * len(Config.seen) * outputs.pow(2).mean()


class Cool:
    steps = 0

    def on_step_end(self, step, logs):
        type(self).steps += 1
        Config.temperature = 0.95 * Config.temperature

    def on_epoch_end(self, epoch, save_model=False):
        Net.drop *= 0.8
        Config.seen.append(epoch)
        self.model.b.bias.data += 0.001 * Cool.steps


model = Net()
optimizer = torch.optim.Adam(model.parameters(), 0.02)
FabricModel(model, datasets, loss, optimizer, user_callback=Cool()).train(4, 4, 4)
