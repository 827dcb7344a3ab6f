# family: data
# about: callbacks change a sampler: its class weights, and a data set that it reads; two loader processes
# expect: same
import torch
from callbacks import Callback
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Sampler

from fabric_model import FabricModel


class Points(Dataset):
    def __init__(self, count, seed):
        self.x = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
        self.y = (self.x[:, 0] > 0).long() + (self.x[:, 1] > 0.5).long()
        self.hardest = 0.8

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(5), self.y[i]


class FromEasyToHard(Sampler):
    def __init__(self, data):
        self.data, self.weights, self.draws = data, torch.ones(3), 48

    def __iter__(self):
        easy = self.data.x[:, 0].abs() < self.data.hardest
        return iter(torch.multinomial(self.weights[self.data.y] * easy, self.draws, replacement=True).tolist())

    def __len__(self):
        return self.draws


class Harder(Callback):
    def __init__(self, sampler):
        super().__init__()
        self.sampler = sampler

    def on_epoch_begin(self, epoch):
        self.sampler.data.hardest = 0.8 + epoch

    def on_step_end(self, step, logs):
        self.sampler.weights[step % 3] += 0.5

    def on_epoch_end(self, epoch, logs=None):
        self.sampler.weights[epoch % 3] *= 3


train, test = Points(70, 0), Points(20, 1)
sampler = FromEasyToHard(train)


def datasets():
    return train, test


if __name__ == "__main__":
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
    fabric = FabricModel(model, datasets, F.cross_entropy, torch.optim.Adam(model.parameters(), 0.01),
                         sampler=sampler, user_callback=[Harder(sampler)])
    history = fabric.train(4, 4, 4, num_dataloader_threads=2)
    print(history["loss"], history["val_loss"])
    print(sampler.weights.tolist(), train.hardest)
