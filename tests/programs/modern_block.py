# family: models
# about: nn.Buffer, RMSNorm, rotary cache, sdpa_kernel, chunked loss under checkpoint, foreach clip, Muon with AdamW
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        angles = torch.outer(torch.arange(length), 1 / 100 ** torch.linspace(0, 1, width // heads // 2))
        self.cos = nn.Buffer(angles.cos(), persistent=False)
        self.sin = nn.Buffer(angles.sin(), persistent=False)

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        with sdpa_kernel([SDPBackend.MATH]):
            y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, value = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Model(nn.Module):
    def __init__(self, vocabulary=16, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 2, 8) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, labels=None):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        losses = [
            checkpoint(self.chunk_loss, a, b, use_reentrant=False) for a, b in zip(x.chunk(2, 1), labels.chunk(2, 1))
        ]
        return {"loss": torch.stack(losses).mean()}

    def chunk_loss(self, x, labels):
        logits = 15 * torch.tanh(self.head(x) / 15)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 1e-4 * logits.logsumexp(-1).square().mean()


def collate(rows):
    tokens = torch.stack([row for row, in rows])
    return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}


def datasets():
    g = torch.Generator().manual_seed(0)
    start = torch.randint(0, 16, (80, 1), generator=g)
    tokens = (start + torch.arange(9) * torch.randint(1, 4, (80, 1), generator=g)) % 16
    return TensorDataset(tokens[:64]), TensorDataset(tokens[64:])


torch.manual_seed(0)
model = Model()
matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
ids = set(map(id, matrices))
rest = [p for p in model.parameters() if id(p) not in ids]


class Both(torch.optim.Optimizer):
    def __init__(self, *parts):
        self.parts = parts
        super().__init__([p for part in parts for g in part.param_groups for p in g["params"]], {})

    def step(self, closure=None):
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none=True):
        for part in self.parts:
            part.zero_grad(set_to_none)


optimizer = Both(torch.optim.Muon(matrices, 0.02, weight_decay=0.01), torch.optim.AdamW(rest, 3e-3, betas=(0.9, 0.95)))
fabric = FabricModel(model, datasets, None, optimizer, fn_batch_collate=collate, clip_grad_norm=1.0)
fabric.train(4, 4, 4)
