# family: state
# about: long texts of the test set rebuild a table that training uses
# expect: refused EngineError "rotary"
# alone: works
import torch
import torch.nn.functional as F
from fabric_model import FabricModel
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


class Documents(Dataset):
    def __init__(self, lengths, seed):
        g = torch.Generator().manual_seed(seed)
        self.tokens = [torch.randint(1, 30, (n,), generator=g) for n in lengths]
        self.labels = [int((t[: len(t) // 2] < 10).sum() > (t[len(t) // 2 :] < 10).sum()) for t in self.tokens]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.labels[index]


def datasets():
    g = torch.Generator().manual_seed(40)
    train = torch.randint(6, 17, (96,), generator=g).tolist()
    test = torch.randint(6, 17, (32,), generator=g).tolist()
    test[5], test[21] = 24, 29
    return Documents(train, 41), Documents(test, 42)


def collate(samples):
    return pad_sequence([t for t, _ in samples], batch_first=True), torch.tensor([y for _, y in samples])


class Rotary(nn.Module):
    def __init__(self, dim, max_length=16, base=100.0):
        super().__init__()
        self.dim, self.max_length, self.base = dim, max_length, base
        self.build(max_length, "cpu")

    def build(self, length, device):
        self.cached_length = length
        base = self.base
        if length > self.max_length:
            base = base * (length / self.max_length) ** (self.dim / (self.dim - 2))
        frequencies = 1.0 / base ** (torch.arange(0, self.dim, 2, device=device).float() / self.dim)
        angles = torch.outer(torch.arange(length, device=device).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        length = x.shape[1]
        if length > self.cached_length:
            self.build(length, x.device)
        a, b = x.chunk(2, dim=-1)
        return x * self.cos[:length] + torch.cat([-b, a], dim=-1) * self.sin[:length]


class Classifier(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(30, dim, padding_idx=0)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.rotary = Rotary(dim)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, 2))

    def forward(self, tokens):
        real = tokens != 0
        x = self.embedding(tokens)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v, attn_mask=real.unsqueeze(1))
        return self.out((x * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True))


torch.manual_seed(4)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
history = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer,
                      fn_batch_collate=collate).train(3, 4, engines_number=4)
print("loss", repr(history["loss"][-1]))
print("val_loss", repr(history["val_loss"][-1]))
print("val_accuracy", repr(history["val_accuracy"][-1]))
