# family: buffers
# about: a queue as FIFO by torch.cat, combined by a function of the script
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

SIZE, BATCH = 24, 4


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 4)
        self.register_buffer("queue", F.normalize(torch.randn(SIZE, 4), dim=1))

    def forward(self, x):
        z = F.normalize(self.encoder(x), dim=1)
        near = F.normalize(self.encoder(x + 0.05 * torch.randn_like(x)), dim=1)
        logits = torch.cat([(z * near).sum(1, keepdim=True), z @ self.queue.T], 1) / 0.1
        if self.training:
            self.queue = torch.cat([self.queue, near.detach()])[-SIZE:]
        return logits


def newest(before, values):
    """Every batch has put its rows at the end of the queue."""
    return torch.cat([before, *(value[-BATCH:] for value in values)])[-SIZE:]


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(61))
    return TensorDataset(x, torch.zeros(64, dtype=torch.long)), None


if __name__ == "__main__":
    torch.manual_seed(61)
    model = Memory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    FabricModel(model, datasets, F.cross_entropy, optimizer, buffers={"queue": newest}).train(3, BATCH, 4)
