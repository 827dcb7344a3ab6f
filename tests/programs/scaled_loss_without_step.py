# family: user functions
# about: a step function that scales the loss with a GradScaler and leaves the step to the engine
# expect: refused EngineError "precision"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def step(model, data, eva, train_loader, fn_args):
    model.get_optimizer().zero_grad()
    outputs = model(data[0])
    loss = F.mse_loss(outputs, data[1])
    scaler.scale(loss).backward()
    return 0, loss


if __name__ == "__main__":
    torch.manual_seed(78)
    model = nn.Linear(5, 1)
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(8))
    data = TensorDataset(x, x[:, :1])
    FabricModel(
        model, lambda: (data, None), F.mse_loss, torch.optim.SGD(model.parameters(), 0.01), fn_step_train=step
    ).train(2, 5, 4)
