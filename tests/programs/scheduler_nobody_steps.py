# family: schedulers
# about: a scheduler that the script builds and forgets to hand over
# expect: refused ValueError "lr_scheduler="
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(95)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
x = torch.randn(60, 5, generator=torch.Generator().manual_seed(95))
data = TensorDataset(x, (x[:, 0] > 0).long())
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)
