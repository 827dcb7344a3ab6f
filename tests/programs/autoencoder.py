# family: generative
# about: an autoencoder; a batch is one tensor, which is also the target
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Signals(Dataset):
    def __init__(self, n):
        t = torch.linspace(0, 6.28, 16)
        self.signals = torch.stack([torch.sin(t * (1 + i % 5) + i) for i in range(n)])

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, i):
        return self.signals[i]


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 16))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    torch.manual_seed(2)
    model = AutoEncoder()
    FabricModel(
        model, lambda: (Signals(72), Signals(10)), nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=1e-2)
    ).train(3, 6, 4)


if __name__ == "__main__":
    main()
