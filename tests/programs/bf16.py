# family: options
# about: precision="bf16": autocast in forward and loss
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        h = self.a(x)
        assert not self.training or h.dtype == torch.bfloat16
        return self.b(F.dropout(F.gelu(self.norm(h)), 0.1, self.training))


def datasets():
    g = torch.Generator().manual_seed(83)
    x = torch.randn(76, 8, generator=g)
    return TensorDataset(x[:60], x[:60].argmax(1) % 4), TensorDataset(x[60:], x[60:].argmax(1) % 4)


torch.manual_seed(83)
model = Mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
FabricModel(model, datasets, F.cross_entropy, optimizer, precision="bf16").train(3, 5, 4)
