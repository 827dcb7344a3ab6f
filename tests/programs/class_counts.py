# family: buffers
# about: a loss that counts classes in a buffer and a running mean; fabric_buffers says how they combine
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Balanced(nn.Module):
    """Weighs classes by how often they came so far."""

    fabric_buffers = {"counts": "sum", "mean_loss": "mean"}

    def __init__(self, classes):
        super().__init__()
        self.register_buffer("counts", torch.ones(classes))
        self.register_buffer("mean_loss", torch.zeros(()))

    def forward(self, outputs, labels):
        loss = F.cross_entropy(outputs, labels, weight=self.counts.sum() / self.counts / len(self.counts))
        if self.training:
            self.counts += torch.bincount(labels, minlength=len(self.counts))
            self.mean_loss.lerp_(loss.detach(), 0.1)
        return loss


def datasets():
    g = torch.Generator().manual_seed(62)
    x, y = torch.randn(72, 5, generator=g), (torch.rand(72, generator=g) ** 2 * 3).long()
    return TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])


torch.manual_seed(62)
net, criterion = nn.Linear(5, 3), Balanced(3)
FabricModel(net, datasets, criterion, torch.optim.SGD(net.parameters(), lr=0.1)).train(3, 5, 4)
print("counts", criterion.counts.tolist())
