# family: precision
# about: the history of the largest activations is an attribute of a parameter
# expect: refused EngineError "amax_history"
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(61)
FP8_MAX = 448.0


def through_fp8(x, scale):
    """Straight-through rounding to float8_e4m3fn."""
    rounded = (x.detach() * scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(x.dtype) / scale
    return x + (rounded - x.detach())


class FP8Linear(nn.Linear):
    def forward(self, x):
        history = getattr(self.weight, "amax_history", None)
        if history is None:
            history = self.weight.amax_history = deque([4.0], maxlen=4)
        scale = FP8_MAX / max(history)                     # of the batches before this one
        if self.training:
            history.append(float(x.detach().abs().max()) + 1e-6)
        weight = through_fp8(self.weight, FP8_MAX / float(self.weight.detach().abs().max()))
        return F.linear(through_fp8(x, scale), weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.mid, self.out = FP8Linear(10, 32), FP8Linear(32, 32), nn.Linear(32, 1)
        self.norm = nn.RMSNorm(32)

    def forward(self, x):
        h = F.silu(self.inp(x))
        h = h + F.silu(self.mid(self.norm(h)))
        return self.out(h).squeeze(-1)


def datasets():
    g = torch.Generator().manual_seed(14)
    x = torch.randn(120, 10, generator=g) * torch.rand(120, 1, generator=g) * 4
    y = torch.tanh(x[:, 0] - x[:, 1]) + 0.5 * x[:, 2].abs()
    return TensorDataset(x[:100], y[:100]), TensorDataset(x[100:], y[100:])


def mean_error(outputs, labels):
    return (outputs - labels).abs().mean()


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
fabric = FabricModel(model, datasets, nn.HuberLoss(), optimizer, [mean_error])
history = fabric.train(3, 6, engines_number=4, clip_grad_norm=1.0)
print(history["loss"], history["val_loss"], history["mean_error"],
      float(sum(p.double().sum() for p in model.parameters())))
