# family: fine-tuning
# about: low-rank adapters on a frozen base; the optimizer holds the adapters alone
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class LoRA(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale, self.dropout = alpha / rank, nn.Dropout(0.1)

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(self.dropout(x), self.a), self.b)


def adapt(model):
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, LoRA(child))
        else:
            adapt(child)


def datasets():
    g = torch.Generator().manual_seed(50)
    x = torch.randn(75, 10, generator=g)
    return TensorDataset(x[:60], x[:60].argmax(1) % 3), TensorDataset(x[60:], x[60:].argmax(1) % 3)


torch.manual_seed(50)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Sequential(nn.Linear(20, 20), nn.ReLU()), nn.Linear(20, 3))
model.requires_grad_(False)
adapt(model)
trained = [p for p in model.parameters() if p.requires_grad]
print("trained", sum(p.numel() for p in trained), "of", sum(p.numel() for p in model.parameters()))
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.AdamW(trained, lr=0.01))
fabric.train(3, 5, 4)
