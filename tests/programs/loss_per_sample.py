# family: losses
# about: a loss function without a reduction
# expect: refused EngineError "one number"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(140)
model = nn.Linear(4, 2)
data = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2)
criterion = nn.CrossEntropyLoss(reduction="none")
FabricModel(model, lambda: (data, data), criterion, torch.optim.SGD(model.parameters(), 0.1)).train(2, 4, 2)
