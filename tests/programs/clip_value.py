# family: options
# about: clip_grad_value given to FabricModel and changed by train()
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(82)
x = torch.linspace(-3, 3, 66)[:, None]
data = TensorDataset(x, 5 * x**3)
model = nn.Sequential(nn.Linear(1, 10), nn.Softplus(), nn.Linear(10, 1))
fabric = FabricModel(
    model, lambda: (data, data), nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.02), clip_grad_value=10
)
fabric.train(3, 4, 4, clip_grad_value=1.0)
