# family: callbacks
# about: a callback with a hook that no engine calls
# expect: refused TypeError "on_train_epoch_finished"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class Halve(Callback):
    def on_train_epoch_finished(self, trainer):
        for group in self.params["optimizer"].param_groups:
            group["lr"] /= 2


torch.manual_seed(107)
model = nn.Linear(4, 2)
data = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, user_callback=[Halve()]).train(2, 4, 2)
