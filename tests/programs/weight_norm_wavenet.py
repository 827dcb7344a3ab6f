# family: parametrizations
# about: dilated convolutions under weight_norm, regression of the next value
# expect: same
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Waves(Dataset):
    def __init__(self, first, last):
        self.numbers = range(first, last)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        t = torch.arange(17) * (0.1 + 0.01 * self.numbers[i])
        wave = torch.sin(t)
        return wave[None, :-1], wave[None, 1:]


class WaveNet(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        sizes = [1, channels, channels]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv1d(a, channels, 2, dilation=2**i)) for i, a in enumerate(sizes)
        )
        self.out = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(nn.functional.pad(x, (2**i, 0))))
        return self.out(x)


if __name__ == "__main__":
    torch.manual_seed(6)
    net = WaveNet()
    opt = torch.optim.NAdam(net.parameters(), lr=5e-3)
    FabricModel(net, lambda: (Waves(0, 60), Waves(60, 70)), nn.L1Loss(), opt).train(3, 5, 4)
