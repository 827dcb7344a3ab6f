# family: state
# about: the loss counts classes in an object that a cached function returns
# expect: refused EngineError "the cache of class_balance"
import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

CLASSES = 3
WARMUP = 96          # samples before the class weights are trusted


class ClassBalance:
    def __init__(self, classes, momentum=0.9):
        self.momentum = momentum
        self.frequency = torch.full((classes,), 1.0 / classes)
        self.seen = 0

    def update(self, labels):
        now = torch.bincount(labels, minlength=len(self.frequency)).float() / len(labels)
        self.frequency = self.momentum * self.frequency + (1 - self.momentum) * now
        self.seen += len(labels)

    def alpha(self):
        if self.seen <= WARMUP:
            return torch.ones_like(self.frequency)
        weight = 1.0 / (self.frequency + 0.02)
        return weight * len(weight) / weight.sum()


@functools.cache
def class_balance():
    return ClassBalance(CLASSES)


def focal_loss(logits, labels, gamma=2.0):
    balance = class_balance()
    if torch.is_grad_enabled():
        balance.update(labels)
    log_p = F.log_softmax(logits, dim=1).gather(1, labels[:, None]).squeeze(1)
    return -(balance.alpha()[labels] * (1 - log_p.exp()) ** gamma * log_p).mean()


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), n, replacement=True, generator=g)
    x = torch.randn(n, 10, generator=g) + y[:, None] * 0.8
    return TensorDataset(x, y)


def datasets():
    return make_split(96, 1), make_split(32, 2)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    history = FabricModel(model, datasets, focal_loss, optimizer).train(3, 8, engines_number=4)
    print("loss    ", history["loss"])
    print("val_loss", history["val_loss"])
    print("class weights", class_balance().alpha().tolist())
