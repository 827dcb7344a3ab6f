# family: models
# about: forward makes a layer at its first call, which the optimizer does not have
# expect: refused EngineError "proj"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.proj = None

    def forward(self, x):
        x = self.body(x).relu()
        if self.proj is None:
            self.proj = nn.Linear(x.shape[1], 3)
        return self.proj(x)


def datasets():
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x[:, :3].argmax(1)), None


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Net()
    FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(3, 4, 4)
