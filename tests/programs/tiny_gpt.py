# family: text
# about: a tiny GPT: causal attention, AdamW with two groups, cosine with warm-up per step, clipping
# expect: same
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel

TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on. " * 6
VOCABULARY = sorted(set(TEXT))


@dataclass
class GPTConfig:
    vocabulary: int = len(VOCABULARY)
    block: int = 12
    layers: int = 2
    heads: int = 2
    width: int = 16
    dropout: float = 0.1


class Windows(Dataset):
    def __init__(self, text, block):
        self.tokens = torch.tensor([VOCABULARY.index(c) for c in text])
        self.block = block

    def __len__(self):
        return (len(self.tokens) - 1) // self.block

    def __getitem__(self, i):
        at = i * self.block
        return self.tokens[at:at + self.block], self.tokens[at + 1:at + 1 + self.block]


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Parameter(0.02 * torch.randn(config.block, config.width))
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position)))


def loss_function(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def warm_cosine(step, warm=2, total=9):
    return (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * min(1, (step - warm) / (total - warm))))


def main():
    torch.manual_seed(1337)
    config = GPTConfig()
    model = GPT(config)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_cosine)
    fabric = FabricModel(
        model, lambda: (Windows(TEXT, config.block), Windows(TEXT[100:200], config.block)), loss_function, optimizer,
        lr_scheduler=scheduler, lr_scheduler_interval="step", clip_grad_norm=1.0,
    )
    history = fabric.train(3, 3, 4)
    print("history", history["lr"], history["val_loss"])


if __name__ == "__main__":
    main()
