# family: callbacks
# about: datasets_function puts the data set into a global, and a callback changes it
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


torch.manual_seed(0)

TRAIN = None


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
        self.noise, self.hard = 1.0, []

    def __len__(self):
        return 64

    def __getitem__(self, i):
        i = self.hard[i % len(self.hard)] if self.hard and i % 4 == 0 else i
        return self.x[i] + self.noise * torch.randn(6), int(self.x[i, 0] > 0)


def make():
    global TRAIN
    TRAIN = Noisy()
    return TRAIN, None


class Hard:
    def on_epoch_end(self, epoch, save_model=False):
        TRAIN.noise *= 0.5
        with torch.no_grad():
            losses = F.cross_entropy(self.model(TRAIN.x), (TRAIN.x[:, 0] > 0).long(), reduction="none")
        TRAIN.hard[:] = losses.topk(8).indices.tolist()


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.02)
FabricModel(model, make, F.cross_entropy, optimizer, user_callback=Hard()).train(4, 4, 4)
