# family: callbacks
# about: stochastic weight averaging by a callback with AveragedModel and SWALR
# expect: same
import os

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class SWA(Callback):
    def __init__(self, model, optimizer, start):
        self.averaged = AveragedModel(model)
        self.scheduler = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
        self.start = start

    def on_epoch_end(self, epoch, save_model=False):
        if epoch >= self.start:
            self.averaged.update_parameters(self.model)
            self.scheduler.step()
        if save_model:
            folder = os.path.join(os.environ["RESULT_DIR"], "model", "train")
            os.makedirs(folder, exist_ok=True)
            torch.save(self.averaged.state_dict(), os.path.join(folder, "model_epoch_swa.pth"))


if __name__ == "__main__":
    torch.manual_seed(108)
    net = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(108))
    data = TensorDataset(x, x.argmax(1) % 3)
    FabricModel(
        net, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, user_callback=[SWA(net, optimizer, 1)]
    ).train(4, 5, 4)
