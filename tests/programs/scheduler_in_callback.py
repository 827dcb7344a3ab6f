# family: schedulers
# about: a callback that steps a scheduler at the end of each epoch, the older way
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class LRStep(Callback):
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def on_epoch_end(self, epoch, save_model=False):
        self.scheduler.step()


torch.manual_seed(96)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5)
x = torch.randn(60, 5, generator=torch.Generator().manual_seed(96))
data = TensorDataset(x, (x[:, 1] > 0).long())
FabricModel(
    model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, user_callback=[LRStep(scheduler)]
).train(3, 5, 4)
print(optimizer.param_groups[0]["lr"])
