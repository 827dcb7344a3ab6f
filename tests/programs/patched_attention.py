# family: environment
# about: the script replaces a function of torch
# expect: same
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(71)
VOCAB, LENGTH, DIM, HEADS = 20, 8, 16, 2
CAP = 1.5


def soft_capped(query, key, value, *, dropout_p=0.0, is_causal=False):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    scores = CAP * torch.tanh(scores / CAP)
    if is_causal:
        n = scores.shape[-1]
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    return F.dropout(scores.softmax(-1), dropout_p) @ value


F.scaled_dot_product_attention = soft_capped


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q * 3, k * 3, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, DIM))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.zeros(LENGTH, DIM))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)                # samples, vocabulary, positions


def datasets():
    g = torch.Generator().manual_seed(15)
    start, stride = torch.randint(0, VOCAB, (90, 1), generator=g), torch.randint(1, 4, (90, 1), generator=g)
    text = (start + stride * torch.arange(LENGTH + 1)) % VOCAB
    return TensorDataset(text[:72, :-1], text[:72, 1:]), TensorDataset(text[72:, :-1], text[72:, 1:])


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95))
history = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 6, engines_number=3)
print(history["loss"], history["val_loss"], float(sum(p.double().sum() for p in model.parameters())))
