# family: optimizers
# about: LBFGS, whose step needs a closure
# expect: refused TypeError "LBFGS"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(144)
model = nn.Linear(4, 1)
x = torch.randn(40, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
FabricModel(model, lambda: (data, data), nn.MSELoss(), torch.optim.LBFGS(model.parameters())).train(2, 4, 2)
