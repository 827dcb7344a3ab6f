# family: fine-tuning
# about: a learning rate for each layer by parameter groups, with a scheduler over all
# expect: same
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def groups(model, top=0.1, decay=0.5):
    layers = [layer for layer in model if list(layer.parameters())]
    count = len(layers)
    return [{"params": layer.parameters(), "lr": top * decay ** (count - 1 - i)} for i, layer in enumerate(layers)]


def datasets():
    x = torch.linspace(-2, 2, 64)[:, None]
    return TensorDataset(x, x.sin()), TensorDataset(x[::4], x[::4].sin())


if __name__ == "__main__":
    torch.manual_seed(52)
    mlp = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(groups(mlp), lr=0.1, momentum=0.9)
    fabric = FabricModel(mlp, datasets, nn.MSELoss(), optimizer, lr_scheduler=ExponentialLR(optimizer, 0.8))
    print("history", fabric.train(4, 4, 4)["lr"])
