# family: callbacks
# about: callbacks freeze and unfreeze layers and add a parameter group while training goes on
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class Unfreeze(Callback):
    """One layer more in every epoch; the new ones learn slower."""

    def __init__(self, layers):
        self.layers = layers
        self.opened = []

    def on_epoch_begin(self, epoch):
        if epoch == 0:
            return
        index = self.layers[epoch - 1] if epoch <= len(self.layers) else None
        if index is not None:
            layer = self.model[index]
            layer.requires_grad_(True)
            self.params["optimizer"].add_param_group({"params": list(layer.parameters()), "lr": 0.01})
            self.opened.append(index)
        if epoch == 3:
            self.model[4].requires_grad_(False)


torch.manual_seed(53)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
model[0].requires_grad_(False)
model[2].requires_grad_(False)
optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)


def datasets():
    g = torch.Generator().manual_seed(53)
    x, y = torch.randn(60, 6, generator=g), torch.randint(0, 3, (60,), generator=g)
    return TensorDataset(x[:48], y[:48]), TensorDataset(x[48:], y[48:])


unfreeze = Unfreeze([2, 0])
FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=[unfreeze]).train(4, 4, 4)
print("opened", unfreeze.opened)
