# family: callbacks
# about: callbacks change a data set and a collate function that loader processes have
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset, default_collate

from fabric_model import FabricModel

torch.manual_seed(3)


class Harder(Dataset):
    def __init__(self):
        self.x = torch.randn(60, 5)
        self.y = self.x.pow(2).sum(1, keepdim=True)
        self.noise = 1.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + self.noise * torch.randn(5), self.y[i]


class Scaled:
    def __init__(self):
        self.scale = torch.ones(1)

    def __call__(self, samples):
        x, y = default_collate(samples)
        return x * self.scale, y


class Curriculum:
    def __init__(self, data, collate):
        self.data, self.collate = data, collate

    def on_epoch_begin(self, epoch):
        self.data.noise = 1.0 / (1 + epoch)

    def on_step_end(self, step, logs):
        self.collate.scale.mul_(0.9)


train, collate = Harder(), Scaled()
model = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
fabric = FabricModel(model, lambda: (train, train), nn.MSELoss(), optimizer,
                     user_callback=[Curriculum(train, collate)], fn_batch_collate=collate)
history = fabric.train(3, 5, engines_number=4, num_dataloader_threads=2)
print(history["loss"], history["val_loss"], train.noise, float(collate.scale))
