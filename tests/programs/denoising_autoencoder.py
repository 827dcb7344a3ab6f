# family: generative
# about: the collate function adds noise to the inputs and keeps the clean targets
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

NOISE = 0.3


def noisy(samples):
    clean = torch.stack([sample[0] for sample in samples])
    return clean + NOISE * torch.randn(clean.shape), clean


def datasets():
    g = torch.Generator().manual_seed(4)
    return TensorDataset(torch.rand(60, 10, generator=g)), TensorDataset(torch.rand(12, 10, generator=g))


torch.manual_seed(4)
model = nn.Sequential(nn.Linear(10, 6), nn.LayerNorm(6), nn.ELU(), nn.Linear(6, 10))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
fabric = FabricModel(model, datasets, F.smooth_l1_loss, optimizer, fn_batch_collate=noisy)
fabric.train(4, 5, 3)
