# family: metrics
# about: metrics over the whole test set: an object with update and compute, as torchmetrics has them
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class F1(nn.Module):
    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.hits = self.claimed = self.actual = 0

    def update(self, outputs, labels):
        predicted = outputs.argmax(1)
        self.hits += int((predicted * labels).sum())
        self.claimed += int(predicted.sum())
        self.actual += int(labels.sum())

    def forward(self, outputs, labels):
        self.update(outputs, labels)
        return self.compute()

    def compute(self):
        return torch.tensor(2 * self.hits / max(1, self.claimed + self.actual))


def datasets():
    g = torch.Generator().manual_seed(141)
    x = torch.randn(90, 5, generator=g)
    y = (x[:, 0] + x[:, 1] > 0.5).long()
    return TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])


if __name__ == "__main__":
    torch.manual_seed(141)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    history = FabricModel(
        model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.02), metrics=[F1()]
    ).train(3, 5, 4)
    print("history", history["val_F1"])
