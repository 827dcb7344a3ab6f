# family: vision
# about: a U-Net; every pixel has a label; Dice and cross entropy together
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Shapes(Dataset):
    """Squares on noise."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1000 + i)
        image, mask = torch.randn(1, 8, 8, generator=g), torch.zeros(8, 8, dtype=torch.long)
        top, left = torch.randint(0, 4, (2,), generator=g).tolist()
        mask[top:top + 4, left:left + 4] = 1
        return image + mask, mask


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = conv(1, 8), conv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.merge, self.out = conv(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        return self.out(self.merge(torch.cat([self.up(b), a], 1)))


def loss(outputs, masks):
    probability = outputs.softmax(1)[:, 1]
    overlap = 2 * (probability * masks).sum() / (probability.sum() + masks.sum() + 1)
    return F.cross_entropy(outputs, masks) + 1 - overlap


if __name__ == "__main__":
    torch.manual_seed(3)
    model = UNet()
    fabric = FabricModel(
        model, lambda: (Shapes(48, 1), Shapes(8, 2)), loss, torch.optim.AdamW(model.parameters(), lr=3e-3)
    )
    fabric.train(3, 3, 4)
