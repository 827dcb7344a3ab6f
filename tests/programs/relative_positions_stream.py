# family: streams
# about: a language model on a shuffled stream without a length, accumulation, averaged weights in state=
# expect: same
import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import IterableDataset

from fabric_model import FabricModel

VOCAB, LENGTH, MASK, IGNORE = 20, 16, 1, -100


class PackedStream(IterableDataset):
    """Documents of a Markov chain, shuffled in a buffer, packed to blocks; some inputs are masked in training."""

    def __init__(self, documents, seed, buffer_size=0, mask_share=0.0):
        self.documents, self.seed, self.buffer_size, self.mask_share = documents, seed, buffer_size, mask_share
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def read(self):
        rng = random.Random(self.seed)
        for number in range(self.documents):
            token, document = rng.randrange(2, VOCAB), []
            for _ in range(rng.randint(20, 55)):
                document.append(token)
                token = 2 + (3 * (token - 2) + rng.choice((1, 1, 1, 5))) % (VOCAB - 2)
            yield number, document

    def shuffled(self):
        if not self.buffer_size:
            yield from self.read()
            return
        rng = random.Random(1000 * self.seed + self.epoch)
        buffer = []
        for document in self.read():
            if len(buffer) < self.buffer_size:
                buffer.append(document)
                continue
            place = rng.randrange(len(buffer))
            buffer[place], document = document, buffer[place]
            yield document
        rng.shuffle(buffer)
        yield from buffer

    def __iter__(self):
        tokens, segments = [], []
        for number, document in self.shuffled():
            tokens += document
            segments += [number] * len(document)
            while len(tokens) > LENGTH:
                yield self.block(torch.tensor(tokens[:LENGTH + 1]), torch.tensor(segments[:LENGTH + 1]))
                del tokens[:LENGTH], segments[:LENGTH]

    def block(self, tokens, segments):
        labels = tokens[1:].masked_fill(segments[1:] != segments[:-1], IGNORE)
        inputs = tokens[:-1]
        if self.mask_share:
            inputs = inputs.masked_fill(torch.rand(LENGTH) < self.mask_share, MASK)
        return {"input_ids": inputs, "segment_ids": segments[:-1], "labels": labels}


def datasets():
    return (PackedStream(42, seed=1, buffer_size=8, mask_share=0.1), PackedStream(10, seed=2))


class RelativeAttention(nn.Module):
    """Shaw et al.: learnt embeddings of clipped distances are added to keys and to values."""

    def __init__(self, dim, heads, window=6, dropout=0.1):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.relative_key = nn.Embedding(window + 1, self.head_dim)
        self.relative_value = nn.Embedding(window + 1, self.head_dim)
        self.drop = nn.Dropout(dropout)
        position = torch.arange(LENGTH)
        self.register_buffer("distance", (position[:, None] - position[None, :]).clamp(0, window), persistent=False)
        self.register_buffer("causal", position[:, None] >= position[None, :], persistent=False)

    def forward(self, x, segment_ids):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        rk, rv = self.relative_key(self.distance[:t, :t]), self.relative_value(self.distance[:t, :t])
        scores = (q @ k.transpose(-1, -2) + torch.einsum("bhid,ijd->bhij", q, rk)) / math.sqrt(self.head_dim)
        allowed = self.causal[:t, :t] & (segment_ids[:, :, None] == segment_ids[:, None, :])
        weights = self.drop(scores.masked_fill(~allowed.unsqueeze(1), float("-inf")).softmax(-1))
        y = weights @ v + torch.einsum("bhij,ijd->bhid", weights, rv)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = RelativeAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim), nn.Dropout(0.1))

    def forward(self, x, segment_ids):
        x = x + self.attention(self.norm1(x), segment_ids)
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, dim=32, heads=4, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids, segment_ids):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x, segment_ids)
        return self.head(self.norm(x))


def smoothed_loss(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, label_smoothing=0.1)


def nll(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE)


class SWA:
    """Averages the weights after each step from the second epoch on, and evaluates the average."""

    def __init__(self, average, start_epoch):
        self.average, self.start_epoch, self.epoch = average, start_epoch, 0
        self.held_out = list(PackedStream(10, seed=2))
        self.nll = []

    def on_epoch_begin(self, epoch):
        self.epoch = epoch

    def on_step_end(self, step, logs):
        if self.epoch >= self.start_epoch:
            self.average.update_parameters(self.model)

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        if epoch < self.start_epoch:
            return
        self.average.eval()
        device = next(self.average.parameters()).device
        batch = {name: torch.stack([block[name] for block in self.held_out]).to(device) for name in self.held_out[0]}
        labels = batch.pop("labels")
        with torch.no_grad():
            self.nll.append(nll(self.average(**batch), labels).item())


def warmup_then_constant(step):
    return min(1.0, (step + 1) / 3)


torch.manual_seed(51)
random.seed(51)
model = LanguageModel()
average = AveragedModel(model)
matrices = [p for p in model.parameters() if p.ndim > 1]
vectors = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
                              lr=1e-2, betas=(0.9, 0.98))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_then_constant)
swa = SWA(average, start_epoch=1)

fabric = FabricModel(model, datasets, smoothed_loss, optimizer, metrics=[nll], user_callback=[swa],
                     accumulate=2, clip_grad_norm=1.0, state={"average": average})
history = fabric.train(3, 4, engines_number=4, lr_scheduler=scheduler, lr_scheduler_interval="step")

held_out = list(PackedStream(10, seed=2))
average.eval()
with torch.no_grad():
    logits = average(torch.stack([b["input_ids"] for b in held_out]), torch.stack([b["segment_ids"] for b in held_out]))
    final = nll(logits, torch.stack([b["labels"] for b in held_out])).item()

for name in ("loss", "nll", "val_loss", "val_nll", "lr"):
    print(name, history[name][-1])
print("swa nll by epoch", swa.nll)
print("swa nll", final, "perplexity", math.exp(final), "averaged steps", int(average.n_averaged))
