# family: text
# about: a bidirectional LSTM over padded sentences; a sampler groups sentences of like length
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from fabric_model import FabricModel


class Sentences(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.words = [torch.randint(1, 25, (int(n),), generator=g)
                      for n in torch.randint(2, 10, (count,), generator=g)]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return self.words[i], self.words[i] % 4


class ByLength(Sampler):
    """Shuffles, then sorts within pools."""

    def __init__(self, dataset, pool=16):
        self.lengths = [len(words) for words in dataset.words]
        self.pool = pool

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        order = torch.randperm(len(self.lengths)).tolist()
        for at in range(0, len(order), self.pool):
            yield from sorted(order[at:at + self.pool], key=lambda i: self.lengths[i])


def pad(samples):
    words, tags = zip(*samples)
    return pad_sequence(words, True), pad_sequence(tags, True, -100)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(25, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.dropout, self.out = nn.Dropout(0.2), nn.Linear(16, 4)

    def forward(self, words):
        return self.out(self.dropout(self.lstm(self.embedding(words))[0])).transpose(1, 2)


def main():
    torch.manual_seed(22)
    model = Tagger()
    fabric = FabricModel(
        model, lambda: (Sentences(70, 1), Sentences(14, 2)), F.cross_entropy,
        torch.optim.Adam(model.parameters(), lr=0.01), fn_batch_collate=pad, clip_grad_value=0.5,
        sampler=lambda train: ByLength(train, pool=12),
    )
    fabric.train(3, 4, 4)


if __name__ == "__main__":
    main()
