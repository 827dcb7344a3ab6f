# family: data
# about: after each epoch a callback labels samples of a pool and appends them to the training set
# expect: refused EngineError "the training set has 52 samples in epoch 1"
import torch
from callbacks import Callback
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Labeled(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.rows = [(x, int(x[0] > 0)) for x in torch.randn(40, 5, generator=g)]
        self.pool = list(torch.randn(60, 5, generator=g))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Label(Callback):
    def on_epoch_end(self, epoch, logs=None):
        with torch.no_grad():
            for _ in range(12):
                x = train.pool.pop(0)
                train.rows.append((x, int(self.model(x[None]).argmax())))


def datasets():
    return train, None


train = Labeled()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=[Label()]).train(4, 5, 4)
