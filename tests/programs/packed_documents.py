# family: text
# about: packed documents with masks, a bucket sampler whose epoch a callback sets, keys and values kept in fn_test
# expect: same
import random
import torch
from callbacks import Callback
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Sampler
from fabric_model import FabricModel


class Buckets(Sampler):
    def __init__(self, lengths, size):
        self.lengths, self.size, self.epoch = lengths, size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        rng = random.Random(self.epoch)
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], rng.random()))
        parts = [order[i:i + self.size] for i in range(0, len(order), self.size)]
        rng.shuffle(parts)
        return iter([i for part in parts for i in part])


class Epochs(Callback):
    def __init__(self, sampler):
        super().__init__()
        self.sampler = sampler

    def on_epoch_begin(self, epoch):
        self.sampler.set_epoch(epoch + 10)


class Texts(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.items = [[rng.randrange(9) for _ in range(rng.randint(3, 9))] for _ in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return torch.tensor(sorted(self.items[i]))


def pack(samples):
    tokens = torch.cat(samples)
    doc = torch.cat([torch.full((len(s),), i) for i, s in enumerate(samples)])
    labels = tokens.roll(-1)
    labels[(doc != doc.roll(-1)) | (torch.arange(len(doc)) == len(doc) - 1)] = -100
    return (tokens, doc), labels


class Lm(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.e, self.qkv, self.o, self.h = nn.Embedding(9, d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 9)
        self.register_buffer("freq", 10.0 ** -torch.linspace(0, 1, d // 2), persistent=False)

    def rope(self, x, pos):
        a = pos[:, None] * self.freq
        x1, x2 = x.chunk(2, -1)
        return torch.cat([x1 * a.cos() - x2 * a.sin(), x1 * a.sin() + x2 * a.cos()], -1)

    def forward(self, tokens, doc, past=None):
        x = self.e(tokens)
        start = 0 if past is None else len(past[0])
        pos = torch.arange(start, start + len(tokens)).float()
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = self.rope(q, pos), self.rope(k, pos)
        if past is not None:
            k, v = torch.cat([past[0], k]), torch.cat([past[1], v])
            mask = None
        else:
            mask = (doc[:, None] == doc) & (torch.arange(len(doc))[:, None] >= torch.arange(len(doc)))
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=None if mask is None else mask[None])[0]
        out = self.h(x + self.o(y))
        return out if self.training or past is None else (out, (k, v))


def evaluate(model, test_iter, fn_args):
    losses = []
    for (tokens, doc), _ in test_iter:
        first = tokens[doc == 0]
        past, total = (torch.zeros(0, 16), torch.zeros(0, 16)), 0.0
        for i in range(len(first) - 1):
            out, past = model(first[i:i + 1], doc[:1], past)
            total += F.cross_entropy(out, first[i + 1:i + 2]).item()
        losses.append(total / max(1, len(first) - 1))
    return sum(losses) / len(losses)


torch.manual_seed(1)
train = Texts(60, 1)
sampler = Buckets([len(t) for t in train.items], 8)
model = Lm()
opt = torch.optim.AdamW(model.parameters(), 0.01)
h = FabricModel(model, lambda: (train, Texts(12, 2)), F.cross_entropy, opt, fn_batch_collate=pack, fn_test=evaluate,
                sampler=sampler, user_callback=[Epochs(sampler)]).train(3, 4, 4, num_dataloader_threads=1)
print(h, sampler.epoch)
