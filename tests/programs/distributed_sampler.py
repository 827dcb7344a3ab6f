# family: data
# about: a DistributedSampler left over from a DDP script
# expect: refused Error "DistributedSampler"
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from fabric_model import FabricModel

torch.manual_seed(119)
x = torch.randn(48, 4, generator=torch.Generator().manual_seed(119))
data = TensorDataset(x, (x[:, 0] > 0).long())
model = nn.Linear(4, 2)
FabricModel(
    model, lambda: (data, None), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1),
    sampler=DistributedSampler(data, num_replicas=1, rank=0),
).train(2, 4, 2)
