# family: text
# about: the collate function packs texts of different lengths and pads; the loss ignores the padding
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from fabric_model import FabricModel

PAD, EOS, VOCABULARY = 0, 1, 20


class Texts(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, 9, (count,), generator=g)
        self.texts = [torch.randint(2, VOCABULARY, (int(n),), generator=g) for n in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i]


def pack(samples, length=12):
    """Several texts share a row as long as they fit."""
    rows, row = [], []
    for text in samples:
        piece = [*text.tolist(), EOS]
        if len(row) + len(piece) > length:
            rows.append(torch.tensor(row))
            row = []
        row += piece
    rows.append(torch.tensor(row))
    padded = pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12, padding_idx=PAD)
        self.gru = nn.GRU(12, 16, batch_first=True)
        self.out = nn.Linear(16, VOCABULARY)

    def forward(self, tokens):
        return self.out(self.gru(self.embedding(tokens))[0])


def loss(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PAD)


torch.manual_seed(21)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
fabric = FabricModel(model, lambda: (Texts(72, 1), Texts(12, 2)), loss, optimizer, fn_batch_collate=pack)
fabric.train(3, 5, 4)
