# family: generative
# about: a VAE that draws with randn_like in forward and returns its loss itself
# expect: same
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


@dataclass
class Config:
    width: int = 12
    latent: int = 3
    beta: float = 0.5
    lr: float = 3e-3


class Blobs(Dataset):
    def __init__(self, n, seed):
        self.x = torch.rand(n, 9, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index]


class VAE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(9, config.width)
        self.mean, self.logvar = nn.Linear(config.width, config.latent), nn.Linear(config.width, config.latent)
        self.decoder = nn.Sequential(nn.Linear(config.latent, config.width), nn.ReLU(), nn.Linear(config.width, 9))

    def forward(self, x):
        h = F.relu(self.encoder(x))
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        reconstruction = F.mse_loss(self.decoder(z), x)
        divergence = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1).mean()
        return {"loss": reconstruction + self.config.beta * divergence, "z": z}


def main(config):
    torch.manual_seed(9)
    model = VAE(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    history = FabricModel(model, lambda: (Blobs(64, 1), Blobs(16, 2)), None, optimizer).train(3, 4, 4)
    print("history", history["loss"], history["val_loss"])


if __name__ == "__main__":
    main(Config())
