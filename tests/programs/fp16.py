# family: options
# about: precision="fp16" with the loss scale of the engine, and clipping of the unscaled gradients
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def get_data():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(84))
    data = TensorDataset(x, x[:, :2] * 100)
    return data, data


if __name__ == "__main__":
    torch.manual_seed(84)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    FabricModel(
        model, get_data, nn.MSELoss(), optimizer, precision="fp16", clip_grad_norm=5.0
    ).train(3, 4, 4)
