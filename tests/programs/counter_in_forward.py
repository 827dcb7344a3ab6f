# family: state
# about: forward counts its calls in an attribute and uses the number
# expect: refused EngineError "calls"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.layer(x) * min(1.0, self.calls / 10)


x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
torch.manual_seed(70)
model = Warm()
data = TensorDataset(x, (x[:, 0] > 0).long())
FabricModel(model, lambda: (data, data), F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1)).train(3, 4, 4)
