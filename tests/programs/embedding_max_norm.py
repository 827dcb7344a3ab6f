# family: buffers
# about: Embedding(max_norm=) changes its weight in every forward pass
# expect: refused EngineError "is a parameter and changes"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(2)
model = nn.Sequential(nn.Embedding(30, 6, max_norm=1.0), nn.Flatten(), nn.Linear(24, 3))
data = TensorDataset(torch.randint(0, 30, (64, 4)), torch.arange(64) % 3)
optimizer = torch.optim.SGD(model.parameters(), 0.5)
FabricModel(model, lambda: (data, None), nn.CrossEntropyLoss(), optimizer).train(2, 4, engines_number=4)
