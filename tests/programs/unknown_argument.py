# family: options
# about: an argument of another library
# expect: refused TypeError "lr_scheduler="
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(113)
model = nn.Linear(4, 2)
data = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, scheduler=scheduler).train(2, 4, 2)
