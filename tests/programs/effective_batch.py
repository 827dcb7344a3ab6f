# family: options
# about: effective_batch_size that batch_size does not divide
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(148)
model = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten(),
                      nn.Linear(32, 2))
x = torch.randn(70, 1, 8, generator=torch.Generator().manual_seed(148))
data = TensorDataset(x, (x.sum((1, 2)) > 0).long())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer).train(3, 4, effective_batch_size=14)
