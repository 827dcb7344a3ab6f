# family: data
# about: datasets_function tokenizes texts in a pool of processes
# expect: same
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

VOCABULARY = {word: i for i, word in enumerate(["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "far", "away"])}


def tokenize(text):
    return [VOCABULARY[word] for word in text.split()][:5]


def label(text):
    return int("cat" in text)


def datasets():
    words = list(VOCABULARY)
    texts = [" ".join(words[(i * k) % 10] for k in range(1, 6)) for i in range(64)]
    with mp.Pool(2) as pool:
        tokens = pool.map(tokenize, texts)
    with ProcessPoolExecutor(2) as pool:
        labels = list(pool.map(label, texts))
    return TensorDataset(torch.tensor(tokens), torch.tensor(labels)), None


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.h = nn.Embedding(10, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.h(self.e(x).mean(1))


if __name__ == "__main__":
    torch.manual_seed(1)
    model = Bag()
    FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), 1e-2)).train(4, 4, 4)
