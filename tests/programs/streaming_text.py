# family: streams
# about: an IterableDataset that generates text windows; samples_per_epoch says how long an epoch is
# expect: same
import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset

from fabric_model import FabricModel

TEXT = "a bird in the hand is worth two in the bush and the early bird gets the worm"
WORDS = TEXT.split()
IDS = {word: i for i, word in enumerate(dict.fromkeys(WORDS))}


class Stream(IterableDataset):
    """Endless: starts anywhere in the text."""

    def __init__(self, window=5):
        self.window = window

    def __iter__(self):
        words = itertools.cycle(WORDS)
        for _ in range(int(torch.randint(0, len(WORDS), ()))):
            next(words)
        row = [IDS[next(words)] for _ in range(self.window)]
        while True:
            row = [*row[1:], IDS[next(words)]]
            yield torch.tensor(row[:-1]), row[-1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(len(IDS), 8), nn.Linear(32, len(IDS))

    def forward(self, words):
        return self.out(self.embedding(words).flatten(1))


if __name__ == "__main__":
    torch.manual_seed(17)
    model = Model()
    fabric = FabricModel(
        model, lambda: (Stream(), None), F.cross_entropy, torch.optim.Adam(model.parameters(), 0.02),
        samples_per_epoch=60,
    )
    fabric.train(3, 5, 4)
