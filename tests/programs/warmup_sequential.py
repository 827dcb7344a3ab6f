# family: schedulers
# about: SequentialLR of a linear warm-up and a polynomial decay, per step
# expect: same
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def build(optimizer):
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    decay = lr_scheduler.PolynomialLR(optimizer, total_iters=8, power=2)
    return lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[4])


if __name__ == "__main__":
    torch.manual_seed(93)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(93))
    data = TensorDataset(x, x.argmax(1) % 3)
    fabric = FabricModel(
        model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer,
        lr_scheduler=build(optimizer), lr_scheduler_interval="step",
    )
    print("history", fabric.train(3, 4, 4)["lr"])
