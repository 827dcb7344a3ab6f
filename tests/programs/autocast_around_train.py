# family: settings
# about: autocast around train(), and a precision of matrix products
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.set_float32_matmul_precision("medium")
torch.manual_seed(127)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(60, 6, generator=torch.Generator().manual_seed(127))
data = TensorDataset(x, x.argmax(1) % 3)
fabric = FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer)
with torch.autocast("cpu", dtype=torch.bfloat16):
    fabric.train(3, 5, 4)
