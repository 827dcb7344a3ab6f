# family: state
# about: a closure of the step function keeps a running mean of the loss, and clips by it
# expect: refused EngineError "mean"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def make_step():
    mean = 1.0

    def step(model, data, eva, train_loader, fn_args):
        nonlocal mean
        inputs, labels = data
        model.get_optimizer().zero_grad()
        loss = F.mse_loss(model(inputs), labels)
        mean = 0.9 * mean + 0.1 * loss.item()
        (loss.clamp(max=2 * mean)).backward()
        return 0, loss
    return step


torch.manual_seed(72)
net = nn.Linear(4, 1)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
data = TensorDataset(x, x.mean(1, keepdim=True))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
FabricModel(net, lambda: (data, data), F.mse_loss, optimizer, fn_step_train=make_step()).train(3, 4, 4)
