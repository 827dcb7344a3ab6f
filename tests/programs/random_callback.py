# family: callbacks
# about: a callback that draws random numbers: noise on the weights, a random layer is reset
# expect: same
import random

import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class Shake(Callback):
    def on_epoch_begin(self, epoch):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        if epoch == 2:
            random.choice([self.model[0], self.model[2]]).reset_parameters()


torch.manual_seed(110)
model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 2))
x = torch.randn(60, 4, generator=torch.Generator().manual_seed(110))
data = TensorDataset(x, (x[:, 3] > 0).long())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, user_callback=Shake()).train(3, 4, 4)
