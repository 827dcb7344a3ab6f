# family: callbacks
# about: a callback updates a global AveragedModel and a global tensor that the script uses afterwards
# expect: same
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel

torch.manual_seed(8)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
averaged = AveragedModel(model)
temperature = torch.ones(1)


class Averaging(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        averaged.update_parameters(self.model)
        temperature.mul_(0.5)


def loss(outputs, labels):
    return nn.functional.cross_entropy(outputs / temperature, labels)


data = TensorDataset(torch.randn(72, 6), torch.arange(72) % 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
FabricModel(model, lambda: (data, None), loss, optimizer, user_callback=[Averaging()]).train(3, 4, engines_number=4)
print(int(averaged.n_averaged), temperature.item(), [p.sum().item() for p in averaged.parameters()])
