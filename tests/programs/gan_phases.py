# family: generative
# about: a GAN with two optimizers as named phases
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

NOISE = 4


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return self.discriminator(x)


def loss_d(model, batch):
    real, = batch
    fake = model.generator(torch.randn(len(real), NOISE)).detach()
    on_real, on_fake = model.discriminator(real), model.discriminator(fake)
    return (F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
            + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake)))


def loss_g(model, batch):
    real, = batch
    fooled = model.discriminator(model.generator(torch.randn(len(real), NOISE)))
    return F.binary_cross_entropy_with_logits(fooled, torch.ones_like(fooled))


def datasets():
    angle = torch.rand(64, generator=torch.Generator().manual_seed(0)) * 6.28
    return TensorDataset(torch.stack([angle.cos(), angle.sin()], 1)), None


if __name__ == "__main__":
    torch.manual_seed(1)
    gan = Gan()
    opt_d = torch.optim.Adam(gan.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    FabricModel(
        gan, datasets, {"d": loss_d, "g": loss_g}, {"d": opt_d, "g": opt_g}
    ).train(3, 4, 4)
