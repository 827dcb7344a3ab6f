# family: losses
# about: a physics-informed network: derivatives of the output in the loss (create_graph)
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Collocation(Dataset):
    """Points where the equation u'' + u = 0 must hold, drawn anew each time."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.rand(1) * 3


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, t):
        t = t.clone().requires_grad_()
        u = self.net(t)
        du, = torch.autograd.grad(u.sum(), t, create_graph=True)
        ddu, = torch.autograd.grad(du.sum(), t, create_graph=True)
        start = self.net(torch.zeros(1, 1)) - 1
        return {"loss": ((ddu + u) ** 2).mean() + start.pow(2).sum(), "u": u}


def main():
    torch.manual_seed(145)
    model = Field()
    FabricModel(
        model, lambda: (Collocation(), None), None, torch.optim.Adam(model.parameters(), lr=5e-3)
    ).train(3, 4, 4)


if __name__ == "__main__":
    main()
