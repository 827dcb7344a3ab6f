# family: models
# about: a custom autograd.Function: binary weights with a straight-through gradient
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Binarize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        ctx.save_for_backward(weight)
        return weight.sign()

    @staticmethod
    def backward(ctx, gradient):
        weight, = ctx.saved_tensors
        return gradient * (weight.abs() <= 1)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, Binarize.apply(self.weight), self.bias)


def datasets():
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(136))
    data = TensorDataset(x, (x[:, :4].sum(1) > 0).long())
    return data, data


torch.manual_seed(136)
model = nn.Sequential(BinaryLinear(8, 16), nn.BatchNorm1d(16), nn.Hardtanh(), BinaryLinear(16, 2))
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), 0.01)).train(3, 5, 4)
