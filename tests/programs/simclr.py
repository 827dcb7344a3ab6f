# family: contrastive
# about: SimCLR: two augmented views of each sample, the loss compares within the batch
# expect: same
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Views(Dataset):
    def __init__(self, count):
        self.images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(64))

    def augment(self, image):
        if random.random() < 0.5:
            image = torch.flip(image, (2,))
        return image * random.uniform(0.8, 1.2) + 0.05 * torch.randn(image.shape)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.stack([self.augment(self.images[i]), self.augment(self.images[i])])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 8))

    def forward(self, views):
        return F.normalize(self.net(views.flatten(0, 1)), dim=1)


def nt_xent(z, _views, temperature=0.5):
    similarity = z @ z.T / temperature
    similarity = similarity.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    partner = torch.arange(len(z)) ^ 1
    return F.cross_entropy(similarity, partner)


torch.manual_seed(64)
encoder = Encoder()
FabricModel(
    encoder, lambda: (Views(64), None), nt_xent, torch.optim.Adam(encoder.parameters(), lr=3e-3)
).train(3, 4, 4, num_dataloader_threads=1)
