# family: data
# about: shuffle=False: a time series in its order
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Series(Dataset):
    def __init__(self, start, stop, window=8):
        self.values = torch.sin(torch.arange(start, stop) / 5)
        self.window = window

    def __len__(self):
        return len(self.values) - self.window

    def __getitem__(self, i):
        return self.values[i:i + self.window], self.values[i + self.window:i + self.window + 1]


if __name__ == "__main__":
    torch.manual_seed(120)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    FabricModel(model, lambda: (Series(0, 70), Series(70, 90)), nn.MSELoss(), optimizer, shuffle=False).train(3, 4, 4)
