# family: architectures
# about: top-2 experts with a load-balancing loss, summed counts of experts, and biases that a callback moves
# expect: same
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(21)
EXPERTS = 4


class MoE(nn.Module):
    fabric_buffers = {"counts": "sum"}

    def __init__(self, dim=10, hidden=16):
        super().__init__()
        self.router = nn.Linear(dim, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)) for _ in range(EXPERTS))
        self.head = nn.Linear(dim, 1)
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.register_buffer("counts", torch.zeros(EXPERTS, dtype=torch.long))

    def forward(self, x):
        prob = self.router(x).softmax(-1)
        chosen = (prob.detach() + self.bias).topk(2, dim=-1).indices
        gate = prob.gather(1, chosen)
        gate = gate / gate.sum(1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows, slot = (chosen == e).nonzero(as_tuple=True)
            if len(rows):                                  # an idle expert has no gradient in this batch
                out = out.index_add(0, rows, expert(x[rows]) * gate[rows, slot, None])
        load = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        if self.training:
            self.counts += load
        balance = EXPERTS * (load / load.sum() * prob.mean(0)).sum()
        return self.head(x + out), balance


def loss_function(outputs, y):
    pred, balance = outputs
    return F.mse_loss(pred.squeeze(-1), y) + 0.01 * balance


class Balance:
    def __init__(self, net, rate=0.02):
        self.moe, self.rate, self.trace = net, rate, []

    def on_step_end(self, step, logs=None):
        load = self.moe.counts.float()
        self.moe.bias += self.rate * torch.sign(load.mean() - load)
        self.trace.append(int(load.max()))
        self.moe.counts.zero_()


def datasets():
    g = torch.Generator().manual_seed(8)
    x = torch.randn(130, 10, generator=g)
    y = torch.where(x[:, 0] > 0, x[:, 1] * x[:, 2], x[:, 3].sin())
    return TensorDataset(x[:110], y[:110]), TensorDataset(x[110:], y[110:])


model = MoE()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
fabric = FabricModel(model, datasets, loss_function, optimizer, user_callback=[Balance(model)])
history = fabric.train(3, 8, engines_number=4)
print(history["loss"], history["val_loss"], model.bias.tolist(),
      float(sum(p.double().sum() for p in model.parameters())))
