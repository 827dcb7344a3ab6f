# family: data
# about: a data set that adds noise after its first 150 reads
# expect: refused EngineError "a sample depends on the samples that were read before it"
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Hardening(Dataset):
    def __init__(self):
        self.x = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
        self.y = self.x[:, :3].argmax(1)
        self.reads = 0

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.reads += 1
        return self.x[i] + 0.5 * (self.reads > 150), self.y[i]


def datasets():
    return Hardening(), None


if __name__ == "__main__":
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(5, 4, 4)
