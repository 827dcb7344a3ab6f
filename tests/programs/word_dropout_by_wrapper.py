# family: callbacks
# about: a callback changes a transform inside of nested data sets that loader processes have; adaptive softmax
# expect: same
import math

import torch
import torch.nn.functional as F
from fabric_model import FabricModel
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import ConcatDataset, Dataset, Subset

WORDS, PRETRAINED = 40, 8


class WordDropout:
    def __init__(self, p):
        self.p = p

    def __call__(self, tokens):
        return tokens.masked_fill(torch.rand(tokens.shape) < self.p, 0)


class Ngrams(Dataset):
    def __init__(self, count, seed, transform=None):
        text = torch.randint(1, WORDS, (count + 4,), generator=torch.Generator().manual_seed(seed))
        text[2:] = torch.where(text[2:] % 3 == 0, (text[:-2] * 2) % WORDS, text[2:])
        self.text, self.transform = text, transform

    def __len__(self):
        return len(self.text) - 4

    def __getitem__(self, index):
        tokens = self.text[index : index + 4]
        if self.transform is not None:
            tokens = self.transform(tokens)
        return {"tokens": tokens, "labels": self.text[index + 4]}


class KeepRows:
    """Hook of a parameter: the first rows are not trained."""

    def __init__(self, rows):
        self.rows = rows

    def __call__(self, grad):
        grad = grad.clone()
        grad[: self.rows] = 0
        return grad


class Language(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.far = nn.Embedding(WORDS, dim)
        self.near = nn.Embedding(WORDS, dim)
        self.near.weight = self.far.weight
        self.far.weight.register_hook(KeepRows(PRETRAINED))
        self.mix = spectral_norm(nn.Linear(4 * dim, 24))
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(24, WORDS, cutoffs=[10, 22], div_value=2.0)

    def forward(self, tokens, labels):
        x = torch.cat([self.far(tokens[:, :2]), self.near(tokens[:, 2:])], dim=1).flatten(1)
        x = torch.tanh(self.mix(x)) * 3
        return {"loss": self.softmax(x, labels).loss, "logits": self.softmax.log_prob(x)}


class Perplexity:
    """That of the epoch, and the best one so far."""

    def __init__(self):
        self.best = math.inf
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, outputs, labels):
        self.total += F.nll_loss(outputs["logits"].double(), labels, reduction="sum").item()
        self.count += len(labels)

    def compute(self):
        value = math.exp(self.total / self.count)
        self.best = min(self.best, value)
        return {"perplexity": value, "best_perplexity": self.best}


class MoreDropout:
    def __init__(self, data):
        self.data = data

    def on_epoch_begin(self, epoch):
        self.data.datasets[0].dataset.transform.p = 0.1 * epoch


news = Ngrams(80, 70, WordDropout(0.0))
train = ConcatDataset([Subset(news, range(0, 80, 2)), Ngrams(56, 71)])
test = Ngrams(24, 72)


def datasets():
    return train, test


torch.manual_seed(7)
model = Language()
before = model.far.weight[:PRETRAINED].detach().clone()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = FabricModel(model, datasets, None, optimizer, [Perplexity()],
                      user_callback=[MoreDropout(train)]).train(3, 4, engines_number=4, num_dataloader_threads=2)
print("loss", repr(history["loss"][-1]))
print("val_loss", repr(history["val_loss"][-1]))
print("val_perplexity", repr(history["val_perplexity"][-1]), "best", repr(history["val_best_perplexity"][-1]))
print("pretrained rows moved by", (model.far.weight[:PRETRAINED].detach() - before).abs().max().item())
print("tied", torch.equal(model.far.weight, model.near.weight), "dropout", news.transform.p)
