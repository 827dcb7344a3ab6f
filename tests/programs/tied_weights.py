# family: text
# about: the output layer shares its weight with the embedding
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Bigram(nn.Module):
    def __init__(self, vocabulary=18, width=10):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, word):
        return self.out(self.mix(self.embedding(word)))


def datasets():
    first = torch.arange(90) * 5 % 18
    data = TensorDataset(first, (first * 3 + 1) % 18)
    return data, data


torch.manual_seed(24)
model = Bigram()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
FabricModel(model, datasets, F.cross_entropy, optimizer).train(3, 5, 4)
assert model.out.weight is model.embedding.weight
