# family: batches
# about: a step function that gets nested batches (a named tuple of a dict and a list) as collated
# expect: same
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Record(NamedTuple):
    views: dict
    targets: list


class Records(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(6, generator=g)
        return Record({"left": x[:3], "right": x[3:]}, [x.sum(), (x > 0).float().mean()])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, left, right):
        return self.out(torch.tanh(self.left(left) + self.right(right)))


def step(model, data, eva, train_loader, fn_args):
    model.get_optimizer().zero_grad()
    outputs = model(**data.views)
    loss = F.mse_loss(outputs, torch.stack(list(data.targets), 1))
    loss.backward()
    return torch.tensor(0), loss


def main():
    torch.manual_seed(33)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    FabricModel(model, lambda: (Records(), None), None, optimizer, fn_step_train=step).train(3, 5, 4)


if __name__ == "__main__":
    main()
