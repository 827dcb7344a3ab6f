# family: callbacks
# about: a callback sets attributes of the data set and an item of a global dict that a scheduler reads
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(3)


class Harder(Dataset):
    def __init__(self):
        self.x = torch.randn(60, 5)
        self.y = self.x.pow(2).sum(1, keepdim=True)
        self.noise, self.scale = 1.0, 1

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] * self.scale + self.noise * torch.randn(5), self.y[i]


train = Harder()
progress = {"epoch": 0}


class Curriculum:
    def on_epoch_begin(self, epoch):
        train.noise = 1.0 / (1 + epoch)
        train.scale = 1 + epoch
        progress["epoch"] = epoch


model = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** progress["epoch"])
fabric = FabricModel(model, lambda: (train, None), nn.MSELoss(), optimizer, user_callback=[Curriculum()])
history = fabric.train(3, 5, engines_number=4, lr_scheduler=scheduler, lr_scheduler_interval="step")
print(history["loss"], train.noise, train.scale)
