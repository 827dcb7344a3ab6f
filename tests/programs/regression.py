# family: losses
# about: regression with float labels and a quantile loss made by a closure
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def quantile_loss(*quantiles):
    def loss(outputs, labels):
        errors = labels[:, None] - outputs
        q = torch.tensor(quantiles)
        return torch.maximum(q * errors, (q - 1) * errors).mean()
    return loss


def main():
    torch.manual_seed(138)
    g = torch.Generator().manual_seed(138)
    x = torch.rand(84, 3, generator=g)
    y = 10 * x[:, 0] * x[:, 1] + torch.randn(84, generator=g)
    train, test = TensorDataset(x[:66], y[:66]), TensorDataset(x[66:], y[66:])
    model = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 3))
    FabricModel(
        model, lambda: (train, test), quantile_loss(0.1, 0.5, 0.9), torch.optim.Adamax(model.parameters(), lr=0.02)
    ).train(3, 4, 4)


if __name__ == "__main__":
    main()
