# family: streams
# about: an IterableDataset over sharded files, shuffled by a buffer of its own
# expect: same
import random
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import IterableDataset

from fabric_model import FabricModel

FOLDER = Path(__file__).parent


class Shards(IterableDataset):
    def __init__(self, pattern, buffer=8):
        self.files = sorted(FOLDER.glob(pattern))
        self.buffer = buffer

    def lines(self):
        for file in random.sample(self.files, len(self.files)):
            for line in file.read_text().splitlines():
                *values, label = map(float, line.split(","))
                yield torch.tensor(values), torch.tensor(int(label))

    def __iter__(self):
        kept = []
        for sample in self.lines():
            kept.append(sample)
            if len(kept) > self.buffer:
                yield kept.pop(random.randrange(len(kept)))
        random.shuffle(kept)
        yield from kept


def main():
    torch.manual_seed(18)
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    FabricModel(
        model, lambda: (Shards("train-*.csv"), Shards("test-*.csv")), nn.CrossEntropyLoss(), optimizer
    ).train(3, 4, 4)


if __name__ == "__main__":
    main()
