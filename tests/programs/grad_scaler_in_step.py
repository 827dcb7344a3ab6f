# family: user functions
# about: a step function with a GradScaler
# expect: refused EngineError "precision"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(77)
model = nn.Linear(5, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")


def amp_step(model, data, eva, train_loader, fn_args):
    inputs, labels = data
    model.get_optimizer().zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, labels)
    scaler.scale(loss).backward()
    scaler.step(model.get_optimizer())
    scaler.update()
    return eva(outputs, labels), loss


def datasets():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(7))
    data = TensorDataset(x, (x.sum(1) > 0).long())
    return data, data


FabricModel(model, datasets, F.cross_entropy, optimizer, fn_step_train=amp_step).train(2, 5, 4)
