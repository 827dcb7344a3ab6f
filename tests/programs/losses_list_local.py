# family: state
# about: the same with local_state: each worker keeps a list of its own, without influence on the result
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

losses = []


def step(model, data, eva, train_loader, fn_args):
    inputs, labels = data
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, labels)
    model.get_optimizer().zero_grad()
    loss.backward()
    losses.append(loss.item())
    return eva(outputs, labels), loss


def datasets():
    x = torch.randn(72, 6, generator=torch.Generator().manual_seed(3))
    y = x.argmax(1) % 3
    return TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])


torch.manual_seed(73)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer, fn_step_train=step, local_state="losses")
fabric.train(3, 5, 4)
