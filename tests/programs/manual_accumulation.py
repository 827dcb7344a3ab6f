# family: user functions
# about: a step function that accumulates gradients itself; its counter is found before its optimizer.step()
# expect: refused EngineError "batches changes while a batch is computed"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

ACCUMULATE = 4
batches = 0


def step(model, data, eva, train_loader, fn_args):
    global batches
    inputs, labels = data
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, labels) / ACCUMULATE
    loss.backward()
    batches += 1
    if batches % ACCUMULATE == 0:
        model.get_optimizer().step()
        model.get_optimizer().zero_grad()
    return eva(outputs, labels), loss * ACCUMULATE


torch.manual_seed(79)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
x = torch.randn(80, 6, generator=torch.Generator().manual_seed(9))
train = TensorDataset(x, (x[:, 2] > 0).long())
FabricModel(
    model, lambda: (train, train), F.cross_entropy, torch.optim.AdamW(model.parameters()), fn_step_train=step
).train(2, 4, 4)
