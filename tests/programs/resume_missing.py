# family: ends
# about: resume_from= a file that is not there
# expect: refused ValueError "resume_from"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(103)
model = nn.Linear(3, 2)
data = TensorDataset(torch.randn(40, 3), torch.arange(40) % 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer).train(
    2, 4, 2, resume_from="checkpoints/model_epoch_7.pth"
)
