# family: schedulers
# about: a scheduler that a hook of the optimizer steps after every step
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def main():
    torch.manual_seed(94)
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(94))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)
    print("rate", optimizer.param_groups[0]["lr"])


if __name__ == "__main__":
    main()
