# family: state
# about: a hook of all modules of the process clips activations
# expect: refused EngineError "is a hook of every module"
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class ActivationMonitor:
    def __init__(self, factor=1.5, warmup=12, momentum=0.95):
        self.factor, self.warmup, self.momentum = factor, warmup, momentum
        self.rms, self.batches, self.clipped = {}, {}, {}

    def watch(self, module, inputs, output):
        if not isinstance(module, nn.Linear) or not module.training:
            return None
        name = f"linear {module.in_features}x{module.out_features}"
        now = output.detach().pow(2).mean().sqrt().item()
        self.rms[name] = self.momentum * self.rms.get(name, now) + (1 - self.momentum) * now
        self.batches[name] = self.batches.get(name, 0) + 1
        if self.batches[name] <= self.warmup:
            return None
        limit = self.factor * self.rms[name]
        self.clipped[name] = self.clipped.get(name, 0) + int((output.abs() > limit).sum())
        return output.clamp(-limit, limit)


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g) * torch.rand(n, 1, generator=g).mul(3)
    y = (x[:, :4].sum(1) > x[:, 4:8].sum(1)).long() + (x[:, 8] > 1).long()
    return TensorDataset(x, y)


def datasets():
    return make_split(96, 41), make_split(32, 42)


if __name__ == "__main__":
    torch.manual_seed(0)
    monitor = ActivationMonitor()
    register_module_forward_hook(monitor.watch)
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    history = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 8, engines_number=4)
    print("loss    ", history["loss"])
    print("val_loss", history["val_loss"])
    for name in monitor.rms:
        print(f"{name}: rms {monitor.rms[name]:.4f}, {monitor.clipped.get(name, 0)} values clipped")
