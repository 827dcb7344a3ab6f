# family: parametrizations
# about: spectral_norm as a parametrization, with its power iteration in training
# expect: same
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 6, generator=g)
    y = (x.sum(1, keepdim=True) > 0).float()
    return TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])


def main():
    torch.manual_seed(0)
    critic = nn.Sequential(
        spectral_norm(nn.Linear(6, 16)), nn.LeakyReLU(0.1), spectral_norm(nn.Linear(16, 1)),
    )
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
    FabricModel(critic, datasets, nn.BCEWithLogitsLoss(), optimizer).train(3, 4, 4)


main()
