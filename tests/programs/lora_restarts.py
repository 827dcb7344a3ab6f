# family: callbacks
# about: a callback merges adapters at the end of each epoch and removes their optimizer state
# expect: same
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(31)


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4.0):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        self.drop = nn.Dropout(0.1)
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(self.drop(x), self.A), self.B)

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.scale * self.B @ self.A
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.B.zero_()


class MergeEachEpoch:
    def __init__(self, net, opt):
        self.net, self.opt, self.merges = net, opt, 0

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        for module in self.net.modules():
            if isinstance(module, LoRALinear):
                module.merge()
                for p in (module.A, module.B):
                    self.opt.state.pop(p, None)
        self.merges += 1
        for group in self.opt.param_groups:                # a little more decay after each merge
            group["weight_decay"] = 0.01 * self.merges


def datasets():
    g = torch.Generator().manual_seed(6)
    x = torch.randn(120, 8, generator=g)
    y = (x[:, :4].prod(1) > 0).long() + (x[:, 5] > 0.5).long()
    return TensorDataset(x[:100], y[:100]), TensorDataset(x[100:], y[100:])


model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
for index in (0, 3):
    model[index] = LoRALinear(model[index])
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=5e-3, amsgrad=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(label_smoothing=0.05), optimizer, lr_scheduler=scheduler,
                     lr_scheduler_interval="step", user_callback=[MergeEachEpoch(model, optimizer)])
history = fabric.train(3, 5, engines_number=4, accumulate=1)
print(history["loss"], history["val_loss"], history["lr"], optimizer.param_groups[0]["weight_decay"],
      float(sum(p.double().sum() for p in model.parameters())))
