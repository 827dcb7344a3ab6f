# family: fine-tuning
# about: a frozen backbone whose BatchNorm stays in evaluation mode, and a new head
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(9, 16), nn.BatchNorm1d(16), nn.ReLU())
        for parameter in self.backbone.parameters():
            parameter.requires_grad = False
        self.head = nn.Linear(16, 4)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def datasets():
    g = torch.Generator().manual_seed(51)
    x, y = torch.randn(70, 9, generator=g), torch.randint(0, 4, (70,), generator=g)
    return TensorDataset(x[:56], y[:56]), TensorDataset(x[56:], y[56:])


def main():
    torch.manual_seed(51)
    model = Tuned()
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.02)
    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 4, 4)


if __name__ == "__main__":
    main()
