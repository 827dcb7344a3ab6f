# family: callbacks
# about: a callback raises the mask rate of the collate function, which draws from its own generator
# expect: same
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

VOCABULARY, PAD, MASK, FIRST, LONGEST, WIDTH = 30, 0, 1, 2, 14, 32
WARMUP, TOTAL = 3, 12

random.seed(17)
np.random.seed(17)
torch.manual_seed(17)


class Sentences(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        words = VOCABULARY - FIRST
        self.sentences = []
        for _ in range(count):
            word, sentence = int(rng.integers(words)), []
            for _ in range(int(rng.integers(6, LONGEST + 1))):
                sentence.append(FIRST + word)
                word = (3 * word + int(rng.integers(1, 3))) % words
            self.sentences.append(sentence)

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index]


class MaskTokens:
    """Pads sentences, and hides tokens as BERT does: 80% masked, 10% replaced, 10% kept."""

    def __init__(self, rate=0.1):
        self.rate = rate
        self.rng = random.Random(99)

    def __call__(self, sentences):
        longest = max(map(len, sentences))
        tokens = torch.full((len(sentences), longest), PAD)
        labels = torch.full((len(sentences), longest), -100)
        for row, sentence in enumerate(sentences):
            tokens[row, :len(sentence)] = torch.tensor(sentence)
            hidden = [i for i in range(len(sentence)) if self.rng.random() < self.rate]
            for place in hidden or [self.rng.randrange(len(sentence))]:
                labels[row, place] = sentence[place]
                what = self.rng.random()
                if what < 0.8:
                    tokens[row, place] = MASK
                elif what < 0.9:
                    tokens[row, place] = self.rng.randrange(FIRST, VOCABULARY)
        return {"tokens": tokens, "padding": tokens == PAD, "labels": labels}


class HideMore:
    def __init__(self, collate, step=0.08):
        self.collate = collate
        self.start = collate.rate
        self.step = step

    def on_epoch_begin(self, epoch):
        self.collate.rate = self.start + self.step * epoch


class MaskedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        self.place = nn.Parameter(torch.randn(LONGEST, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)
        self.decoder.weight = self.embed.weight

    def forward(self, tokens, padding):
        x = self.embed(tokens) + self.place[:tokens.shape[1]]
        return self.decoder(self.norm(self.encoder(x, src_key_padding_mask=padding)))


def loss_function(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def hidden_found(logits, labels):
    hidden = labels != -100
    return (logits.argmax(-1)[hidden] == labels[hidden]).float().mean()


def parameter_groups(model, decay):
    with_decay, without = [], []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or name.startswith(("embed", "place"))
        (without if plain else with_decay).append(parameter)
    return [{"params": with_decay, "weight_decay": decay},
            {"params": without, "weight_decay": 0.0, "lr": 2e-3}]


def rate(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return max(0.05, (TOTAL - step) / (TOTAL - WARMUP))


def datasets():
    return Sentences(100, seed=1), Sentences(32, seed=2)


model = MaskedModel()
optimizer = torch.optim.AdamW(parameter_groups(model, 0.05), lr=5e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
collate = MaskTokens()
fabric = FabricModel(model, datasets, loss_function, optimizer, metrics=[hidden_found],
                     user_callback=[HideMore(collate)], fn_batch_collate=collate,
                     lr_scheduler=scheduler, lr_scheduler_interval="step",
                     clip_grad_norm=1.0, accumulate=2)
history = fabric.train(3, 4, 4)
print(f"loss {history['val_loss'][-1]:.6f} found {history['val_hidden_found'][-1]:.4f}")
