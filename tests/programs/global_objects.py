# family: callbacks
# about: a callback updates global objects by their methods: averaged weights, a meter; the script uses them afterwards
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class EMA:
    def __init__(self, model, decay=0.9):
        self.model, self.decay, self.updates = model, decay, 0
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for n, p in self.model.named_parameters():
            self.shadow[n].mul_(d).add_(p, alpha=1 - d)

    def copy_to(self, model):
        model.load_state_dict({**model.state_dict(), **self.shadow})


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.count, self.values = 0.0, 0, []

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.values.append(value)

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
ema = EMA(model)
losses = AverageMeter()


class Update:
    def on_step_end(self, step, logs):
        ema.update()
        losses.update(logs["loss"])

    def on_epoch_end(self, epoch, save_model=False):
        record(epoch)


def record(epoch):
    if losses.avg > 10:
        losses.reset()


optimizer = torch.optim.Adam(model.parameters(), 0.02)
FabricModel(model, datasets, F.cross_entropy, optimizer, user_callback=Update()).train(4, 4, 4)
print(losses.count, losses.avg, len(losses.values), ema.updates)
ema.copy_to(model)
print(sum(p.sum().item() for p in model.parameters()))
