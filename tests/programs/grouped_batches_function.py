# family: data
# about: a function of the training set makes the sampler, which keeps classes together
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class ClassSampler:
    def __init__(self, labels, per_class):
        self.labels, self.per_class = labels, per_class
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.labels)

    def __iter__(self):
        generator = torch.Generator().manual_seed(1000 + self.epoch)
        pools = [torch.nonzero(self.labels == c).flatten() for c in self.labels.unique()]
        pools = [pool[torch.randperm(len(pool), generator=generator)].split(self.per_class) for pool in pools]
        chunks = [chunk for group in zip(*pools) for chunk in group]
        return iter(torch.cat(chunks).tolist())


class Spirals(Dataset):
    def __init__(self, count):
        t = torch.linspace(0.2, 3, count)
        self.labels = torch.arange(count) % 3
        angle = 2 * t + self.labels * 2.1
        self.x = torch.stack([t * angle.cos(), t * angle.sin()], 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.labels[i]


def main():
    torch.manual_seed(118)
    model = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 3))
    FabricModel(
        model, lambda: (Spirals(72), Spirals(12)), nn.CrossEntropyLoss(),
        torch.optim.Adam(model.parameters(), lr=0.02), sampler=lambda dataset: ClassSampler(dataset.labels, 2),
    ).train(3, 6, 4)


if __name__ == "__main__":
    main()
