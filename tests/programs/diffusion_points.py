# family: generative
# about: a DDPM: noise and times drawn in forward, averaged weights, and samples that a callback draws
# expect: same
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

from callbacks import Callback
from fabric_model import FabricModel


class Rings(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        angle = torch.rand(()) * 2 * math.pi
        return torch.stack([torch.cos(angle), torch.sin(angle)]) * (1 + i % 2) + 0.05 * torch.randn(2)


class Ddpm(nn.Module):
    def __init__(self, steps=50):
        super().__init__()
        betas = torch.linspace(1e-4, 0.1, steps)
        self.register_buffer("betas", betas, persistent=False)
        self.register_buffer("alpha_bar", torch.cumprod(1 - betas, 0))
        self.time = nn.Embedding(steps, 8)
        self.net = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 2))

    def eps(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))

    def forward(self, x):
        t = torch.randint(len(self.betas), (len(x),), device=x.device)
        noise = torch.randn_like(x)
        a = self.alpha_bar[t][:, None]
        return F.mse_loss(self.eps(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)

    @torch.no_grad()
    def sample(self, n):
        x = torch.randn(n, 2)
        for t in reversed(range(len(self.betas))):
            beta, bar = self.betas[t], self.alpha_bar[t]
            x = (x - beta / (1 - bar).sqrt() * self.eps(x, torch.full((n,), t))) / (1 - beta).sqrt()
            if t:
                x = x + beta.sqrt() * torch.randn_like(x)
        return x


torch.manual_seed(5)
model = Ddpm()
radii = []
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


class Average(Callback):
    def on_batch_end(self, batch, logs=None):
        ema.update_parameters(model)

    def on_epoch_end(self, epoch, logs=None):
        radii.append(round(ema.module.sample(8).norm(dim=1).mean().item(), 6))


if __name__ == "__main__":
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    fabric = FabricModel(model, lambda: (Rings(48), None), None, optimizer, user_callback=[Average()])
    fabric.train(4, 8, 4)
    print("radii", radii)
