# family: buffers
# about: VQ-VAE: the codebook is a buffer that every batch moves; the mean over batches counts
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Quantizer(nn.Module):
    def __init__(self, codes=6, dim=3, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("codebook", torch.randn(codes, dim))

    def forward(self, z):
        index = torch.cdist(z, self.codebook).argmin(1)
        if self.training:
            with torch.no_grad():
                onehot = F.one_hot(index, len(self.codebook)).float()
                count = onehot.sum(0)[:, None]
                target = torch.where(count > 0, onehot.T @ z.detach() / count.clamp(min=1), self.codebook)
                self.codebook.mul_(self.decay).add_(target, alpha=1 - self.decay)
        chosen = self.codebook[index].clone()
        return z + (chosen - z).detach(), F.mse_loss(z, chosen)


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.quantizer, self.decoder = nn.Linear(8, 3), Quantizer(), nn.Linear(3, 8)

    def forward(self, x):
        quantized, commitment = self.quantizer(self.encoder(x))
        return F.mse_loss(self.decoder(quantized), x) + 0.25 * commitment


class Rows(Dataset):
    def __init__(self, n, seed):
        self.x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


def main():
    torch.manual_seed(63)
    model = VQVAE()
    FabricModel(
        model, lambda: (Rows(60, 0), Rows(12, 1)), None, torch.optim.Adam(model.parameters(), 0.01),
        buffers={"*.codebook": "mean"},
    ).train(3, 5, 4)


if __name__ == "__main__":
    main()
