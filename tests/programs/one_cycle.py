# family: schedulers
# about: OneCycleLR, which is stepped after every step and moves the momentum, too
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

EPOCHS, BATCH, ENGINES = 3, 4, 4


def main():
    torch.manual_seed(90)
    x = torch.randn(70, 5, generator=torch.Generator().manual_seed(90))
    y = (x[:, 0] * x[:, 1] > 0).long()
    train, test = TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    steps = -(-len(train) // (BATCH * ENGINES))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, epochs=EPOCHS, steps_per_epoch=steps)
    fabric = FabricModel(model, lambda: (train, test), nn.CrossEntropyLoss(), optimizer, lr_scheduler=scheduler)
    history = fabric.train(EPOCHS, BATCH, ENGINES)
    print("history", history["lr"], scheduler.get_last_lr(), optimizer.param_groups[0]["momentum"])


if __name__ == "__main__":
    main()
