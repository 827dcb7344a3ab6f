# family: user functions
# about: a step function that steps a scheduler
# expect: refused EngineError "lr_scheduler"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def main():
    torch.manual_seed(76)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)

    def step(model, data, eva, train_loader, fn_args):
        optimizer.zero_grad()
        outputs = model(data[0])
        loss = F.cross_entropy(outputs, data[1])
        loss.backward()
        scheduler.step()
        return eva(outputs, data[1]), loss

    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(6))
    data = TensorDataset(x, (x[:, 1] > 0).long())
    FabricModel(model, lambda: (data, data), F.cross_entropy, optimizer, fn_step_train=step).train(3, 4, 4)


if __name__ == "__main__":
    main()
