# family: callbacks
# about: a callback that changes the weights differently in every worker
# expect: refused EngineError "weight"
# alone: works
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class Jitter(Callback):
    def on_epoch_begin(self, epoch):
        g = torch.Generator().manual_seed(os.getpid() + epoch)
        with torch.no_grad():
            self.model.weight.add_(0.01 * torch.randn(self.model.weight.shape, generator=g))


torch.manual_seed(133)
model = nn.Linear(4, 2)
x = torch.randn(60, 4, generator=torch.Generator().manual_seed(133))
data = TensorDataset(x, (x[:, 0] > 0).long())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, user_callback=[Jitter()]).train(3, 5, 4)
