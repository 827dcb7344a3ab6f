# family: architectures
# about: a Fourier neural operator: complex weights, a layer in bf16, a layer that few batches use, averaged weights
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

POINTS, MODES = 12, 4


class SpectralConv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width, MODES, dtype=torch.cfloat) / width)

    def forward(self, x):
        low = torch.fft.rfft(x)[..., :MODES]
        return torch.fft.irfft(torch.einsum("bim,iom->bom", low, self.weight), n=POINTS)


class Operator(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.lift, self.project = nn.Conv1d(1, width, 1), nn.Conv1d(width, 1, 1)
        self.spectral = SpectralConv(width)
        self.skip = nn.Conv1d(width, width, 1).to(torch.bfloat16)
        self.rough = nn.Conv1d(width, width, 3, padding=1)
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        x = self.lift(x[:, None])
        x = F.gelu(self.spectral(x) + self.skip(x.to(torch.bfloat16)).float())
        if x.std() > 0.3:
            x = x + self.scale * self.rough(x)
        return self.project(x)[:, 0]


def datasets():
    waves = torch.randn(72, POINTS, generator=torch.Generator().manual_seed(0)).cumsum(1)
    smooth = (waves + waves.roll(1, 1) + waves.roll(-1, 1)) / 3
    return TensorDataset(waves[:60], smooth[:60]), TensorDataset(waves[60:], smooth[60:])


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Operator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    fabric = FabricModel(model, datasets, nn.MSELoss(), optimizer, ema=0.9, clip_grad_norm=1.0)
    print([f"{loss:.6f}" for loss in fabric.train(3, 4, 4)["val_loss"]])
