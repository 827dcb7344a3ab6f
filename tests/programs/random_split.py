# family: data
# about: random_split and np.random inside datasets_function; seeds of all three generators
# expect: same
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset, random_split

from fabric_model import FabricModel


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def datasets():
    x = torch.randn(90, 5)
    y = (x @ torch.tensor(np.random.randn(5), dtype=torch.float32) > 0).long()
    whole = TensorDataset(x, y)
    train, test = random_split(whole, [70, 20])
    return Subset(train, random.sample(range(70), 60)), test


def main():
    seed_all(122)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)


if __name__ == "__main__":
    main()
