# family: vision
# about: a small ResNet; crops, flips and noise drawn in the data set
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Pictures(Dataset):
    def __init__(self, count, train):
        generator = torch.Generator().manual_seed(count)
        self.images = torch.randn(count, 3, 10, 10, generator=generator)
        self.labels = torch.randint(0, 4, (count,), generator=generator)
        self.train = train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if not self.train:
            return image[:, 1:9, 1:9], self.labels[index]
        top, left = random.randint(0, 2), random.randint(0, 2)
        image = image[:, top:top + 8, left:left + 8]
        if np.random.rand() < 0.5:
            image = image.flip(-1)
        return image + 0.05 * torch.randn_like(image), self.labels[index]


class Block(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.short = nn.Identity()
        if stride != 1 or inside != outside:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 16, 2))
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def datasets():
    return Pictures(80, True), Pictures(24, False)


def main():
    torch.manual_seed(0)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    fabric = FabricModel(model, datasets, F.cross_entropy, optimizer)
    fabric.train(3, 4, 4)


if __name__ == "__main__":
    main()
