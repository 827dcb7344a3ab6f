# family: ends
# about: a training that goes on from the checkpoint of an earlier one: scheduler, momentum and moving average too
# expect: same
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(102))
    data = TensorDataset(x, x.argmax(1) % 2)
    return data, data


def build():
    torch.manual_seed(102)
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    return model, FabricModel(
        model, datasets, nn.CrossEntropyLoss(), optimizer, lr_scheduler=scheduler, clip_grad_norm=2.0
    )


model, fabric = build()
fabric.train(4, 5, 4)
whole = [parameter.detach().clone() for parameter in model.parameters()]
folder = os.path.join(os.environ["RESULT_DIR"], "model", "train")
os.remove(os.path.join(folder, "model_epoch_1.pth"))
model, fabric = build()
fabric.train(4, 5, 4, resume_from=os.path.join(folder, "model_epoch_2.pth"))
print("first epoch trained again:", os.path.exists(os.path.join(folder, "model_epoch_1.pth")))
print("resumed equals whole:", all(torch.equal(a, b) for a, b in zip(whole, model.parameters())))
