# family: settings
# about: set_default_dtype(float64) in the main script; tensors are made in workers
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Physics(Dataset):
    """Points of a damped oscillation."""

    def __init__(self, n):
        self.t = torch.linspace(0, 2, n)

    def __len__(self):
        return len(self.t)

    def __getitem__(self, i):
        return self.t[i].view(1), (torch.exp(-self.t[i]) * torch.cos(4 * self.t[i])).view(1)


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(126)
    model = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    FabricModel(model, lambda: (Physics(60), Physics(12)), nn.MSELoss(), optimizer).train(3, 5, 4)


if __name__ == "__main__":
    main()
