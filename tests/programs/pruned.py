# family: parametrizations
# about: weights pruned by masks, which are buffers that do not change
# expect: same
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(12)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
for layer in (model[0], model[2]):
    prune.l1_unstructured(layer, "weight", amount=0.5)


def datasets():
    g = torch.Generator().manual_seed(12)
    x, y = torch.randn(70, 8, generator=g), torch.randint(0, 3, (70,), generator=g)
    return TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])


FabricModel(
    model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
).train(3, 4, 4)
for layer in (model[0], model[2]):
    prune.remove(layer, "weight")
print("zeros:", [int((layer.weight == 0).sum()) for layer in (model[0], model[2])])
