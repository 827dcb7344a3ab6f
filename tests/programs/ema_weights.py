# family: options
# about: ema=0.9: a moving average of the weights beside the checkpoints
# expect: same
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(85)
net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(85))
y = x.argmax(1) % 3


def datasets():
    return TensorDataset(x[:48], y[:48]), TensorDataset(x[48:], y[48:])


FabricModel(net, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), ema=0.9).train(3, 4, 4)
averaged = torch.load(os.path.join(os.environ["RESULT_DIR"], "model", "train", "model_epoch_final_ema.pth"))
print("distance", float((averaged["0.weight"] - net[0].weight).abs().max()) > 0)
