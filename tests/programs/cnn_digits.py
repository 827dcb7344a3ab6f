# family: vision
# about: a CNN with BatchNorm and dropout, argparse, metrics as functions
# expect: same
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()


def get_datasets():
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(90, 1, 8, 8, generator=g), torch.randint(0, 10, (90,), generator=g)
    return TensorDataset(x[:70], y[:70]), TensorDataset(x[70:], y[70:])


def top3(outputs, labels):
    return (outputs.topk(3, 1).indices == labels[:, None]).any(1).float().mean()


torch.manual_seed(42)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2),
    nn.Flatten(), nn.Linear(72, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, 10),
)
opt = torch.optim.Adam(net.parameters(), lr=args.lr)
history = FabricModel(net, get_datasets, F.cross_entropy, opt, metrics=[top3]).train(args.epochs, args.batch_size, 4)
print(history["loss"], history["val_top3"])
