# family: ends
# about: on_nonfinite="skip": steps with a broken sample are left out
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(115))
    y = (x[:, 0] > 0).long()
    x[13, 2] = float("inf")
    return TensorDataset(x, y), TensorDataset(x[:8], y[:8])


def main():
    torch.manual_seed(115)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, on_nonfinite="skip").train(3, 4, 4)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


if __name__ == "__main__":
    main()
