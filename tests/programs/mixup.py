# family: vision
# about: mixup in the collate function; labels become one value per class
# expect: same
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

from fabric_model import FabricModel

CLASSES = 5


def mixup(samples, alpha=0.4):
    images, labels = default_collate(samples)
    share = np.random.beta(alpha, alpha)
    order = torch.randperm(len(images))
    soft = F.one_hot(labels, CLASSES).float()
    return share * images + (1 - share) * images[order], share * soft + (1 - share) * soft[order]


def data():
    g = torch.Generator().manual_seed(7)
    x, y = torch.randn(100, 12, generator=g), torch.arange(100) % CLASSES
    return TensorDataset(x[:80], y[:80]), TensorDataset(x[80:], y[80:])


torch.manual_seed(7)
model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Linear(24, CLASSES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
FabricModel(model, data, nn.CrossEntropyLoss(), optimizer, fn_batch_collate=mixup).train(3, 4, 4)
