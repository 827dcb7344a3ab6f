# family: user functions
# about: a step function that steps the optimizer, as a plain training loop does
# expect: refused EngineError "optimizer.step"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def step(model, data, eva, train_loader, fn_args):
    inputs, labels = data
    optimizer = model.get_optimizer()
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, labels)
    loss.backward()
    optimizer.step()
    return eva(outputs, labels), loss


x = torch.randn(64, 4, generator=torch.Generator().manual_seed(5))
data = TensorDataset(x, (x[:, 0] > 0).long())
torch.manual_seed(75)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
FabricModel(model, lambda: (data, data), F.cross_entropy, optimizer, fn_step_train=step).train(2, 4, 4)
