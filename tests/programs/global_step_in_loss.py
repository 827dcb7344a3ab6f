# family: state
# about: the loss function counts steps in a global variable to anneal a weight
# expect: refused EngineError "step"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

step = 0


def annealed(outputs, labels):
    global step
    step += 1
    weight = min(1.0, step / 20)
    return weight * ((outputs - labels) ** 2).mean() + (1 - weight) * (outputs - labels).abs().mean()


def main():
    torch.manual_seed(71)
    model = nn.Linear(3, 1)
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    FabricModel(model, lambda: (data, data), annealed, torch.optim.SGD(model.parameters(), lr=0.05)).train(3, 4, 4)


if __name__ == "__main__":
    main()
