# family: optimizers
# about: Muon for matrices and AdamW for the rest, as one optimizer that holds both in a list
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def orthogonal(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    transposed = x.size(0) > x.size(1)
    x = x.T if transposed else x
    for _ in range(steps):
        y = x @ x.T
        x = a * x + (b * y + c * y @ y) @ x
    return x.T if transposed else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if "buf" not in s:
                    s["buf"] = torch.zeros_like(p)
                s["buf"].mul_(group["momentum"]).add_(p.grad)
                p.add_(orthogonal(p.grad.add(s["buf"], alpha=group["momentum"])), alpha=-group["lr"])


class Combined(torch.optim.Optimizer):
    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)
        self.defaults = {}
        self.state = {}
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}

    @property
    def param_groups(self):
        return [g for o in self.optimizers for g in o.param_groups]

    def zero_grad(self, set_to_none=True):
        for o in self.optimizers:
            o.zero_grad(set_to_none)

    def state_dict(self):
        return {"optimizers": [o.state_dict() for o in self.optimizers]}

    def load_state_dict(self, d):
        for o, s in zip(self.optimizers, d["optimizers"], strict=True):
            o.load_state_dict(s)

    def step(self, closure=None):
        for o in self.optimizers:
            o.step()


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), None


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = Combined(
    Muon([p for p in model.parameters() if p.ndim == 2]),
    torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], 1e-2),
)
FabricModel(model, datasets, F.cross_entropy, optimizer).train(4, 4, 4)
print(optimizer.optimizers[0].state[model[2].weight]["buf"].norm().item())
