# family: buffers
# about: a mixture of experts: a callback moves a routing bias by the usage that workers have summed
# expect: same
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

WIDTH, EXPERTS, TOP, CLASSES = 12, 4, 2, 3

torch.manual_seed(21)


class Experts(nn.Module):
    fabric_buffers = {"usage": "sum", "dropped": "sum", "confidence": "mean"}

    def __init__(self, width, hidden=16):
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, width, hidden) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(EXPERTS, hidden, width) / math.sqrt(hidden))
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.register_buffer("usage", torch.zeros(EXPERTS, dtype=torch.long))
        self.register_buffer("dropped", torch.zeros((), dtype=torch.long))
        self.register_buffer("confidence", torch.full((EXPERTS,), 1 / EXPERTS))

    def forward(self, x):
        scores = self.router(x)
        if self.training:
            scores = scores + 0.1 * torch.randn_like(scores)
        chances = scores.softmax(-1)
        chosen = (chances.detach() + self.bias).topk(TOP, dim=-1).indices
        wanted = F.one_hot(chosen, EXPERTS).sum(1)
        capacity = math.ceil(1.25 * len(x) * TOP / EXPERTS)
        routed = wanted * (wanted.cumsum(0) <= capacity)
        if self.training:
            with torch.no_grad():
                self.usage += wanted.sum(0)
                self.dropped += (wanted - routed).sum()
                self.confidence.lerp_(chances.mean(0), 0.05)
        gates = chances * routed
        gates = gates / gates.sum(-1, keepdim=True).clamp(min=1e-6)
        out = torch.zeros_like(x)
        for e in range(EXPERTS):
            rows = routed[:, e].nonzero().squeeze(1)
            if len(rows):
                part = F.gelu(x[rows] @ self.up[e]) @ self.down[e]
                out = out.index_add(0, rows, part * gates[rows, e:e + 1])
        share = wanted.float().mean(0) / TOP
        balance = EXPERTS * (share * chances.mean(0)).sum()
        return out, balance


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Experts(WIDTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        balance = 0.0
        for layer, norm in zip(self.layers, self.norms):
            out, extra = layer(norm(x))
            x = x + out
            balance = balance + extra
        return self.head(x), balance


class BalanceExperts:
    """After each step the bias of overloaded experts falls and that of idle ones rises."""

    def __init__(self, layers, rate=0.02):
        self.layers = layers
        self.rate = rate

    def on_step_end(self, step, logs):
        with torch.no_grad():
            for layer in self.layers:
                load = layer.usage.float()
                layer.bias += self.rate * torch.sign(load.mean() - load)
                layer.usage.zero_()


def loss_function(outputs, labels):
    logits, balance = outputs
    return F.cross_entropy(logits, labels) + 0.02 * balance


def top1(outputs, labels):
    return (outputs[0].argmax(-1) == labels).float().mean()


def datasets():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(132, WIDTH, generator=generator)
    regions = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    planes = torch.randn(4, WIDTH, CLASSES, generator=generator)
    y = torch.einsum("nd,ndc->nc", x, planes[regions]).argmax(1)
    return TensorDataset(x[:100], y[:100]), TensorDataset(x[100:], y[100:])


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
fabric = FabricModel(model, datasets, loss_function, optimizer, metrics=[top1],
                     user_callback=[BalanceExperts(model.layers)], clip_grad_norm=1.0)
history = fabric.train(3, 8, 4)
print(f"loss {history['val_loss'][-1]:.6f} top1 {history['val_top1'][-1]:.4f}")
