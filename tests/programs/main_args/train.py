# family: settings
# about: a module beside the script reads the arguments of the main script from __main__
# expect: same
import argparse

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=12)
parser.add_argument("--drop", type=float, default=0.3)
args = parser.parse_args()
SCALE = 2.0


def activation(x):
    return F.gelu(x)


import net  # noqa: E402 - it reads the names above


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(args.hidden))
    return TensorDataset(x, (x.sum(1) > 0).long()), TensorDataset(x[:8], (x[:8].sum(1) > 0).long())


if __name__ == "__main__":
    torch.manual_seed(3)
    model = net.Net()
    FabricModel(model, datasets, net.loss, torch.optim.AdamW(model.parameters(), 1e-2)).train(4, 4, 4)
