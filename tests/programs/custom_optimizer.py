# family: optimizers
# about: an optimizer of the script's own (Lion) with state per parameter and a counter
# expect: same
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Lion(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        warm = min(1.0, self.steps / 5)
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((average * first + p.grad * (1 - first)).sign_(), alpha=-group["lr"] * warm)
                average.mul_(second).add_(p.grad, alpha=1 - second)


def main():
    torch.manual_seed(142)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(142))
    data = TensorDataset(x, x.argmax(1) % 3)
    optimizer = Lion(model.parameters(), lr=0.01, weight_decay=0.1)
    FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)
    print("steps", optimizer.steps)


if __name__ == "__main__":
    main()
