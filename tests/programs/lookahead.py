# family: optimizers
# about: an optimizer that wraps another one (Lookahead)
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner, k=3, alpha=0.5):
        self.inner, self.k, self.alpha = inner, k, alpha
        self.count = 0
        super().__init__([p for group in inner.param_groups for p in group["params"]], {})

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if self.count % self.k == 0:
                    slow.lerp_(p, self.alpha)
                    p.copy_(slow)


torch.manual_seed(143)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.02))


def datasets():
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(143))
    data = TensorDataset(x, x.argmax(1) % 3)
    return data, data


FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)
