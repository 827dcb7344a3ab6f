# family: state
# about: an object of the script that changes during training, registered by state=
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Annealing:
    """A weight that grows with every step; a hook of the optimizer turns it."""

    def __init__(self):
        self.weight = 0.0

    def __call__(self, *_):
        self.weight = min(1.0, self.weight + 0.1)


class Loss:
    def __init__(self, annealing):
        self.annealing = annealing

    def __call__(self, outputs, labels):
        return F.cross_entropy(outputs, labels) + self.annealing.weight * 0.1 * outputs.pow(2).mean()


torch.manual_seed(112)
annealing = Annealing()
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
optimizer.register_step_post_hook(annealing)
x = torch.randn(60, 5, generator=torch.Generator().manual_seed(112))
data = TensorDataset(x, (x[:, 0] > 0).long())
FabricModel(
    model, lambda: (data, data), Loss(annealing), optimizer, state={"annealing": annealing}
).train(3, 5, 4)
print("weight", annealing.weight)
