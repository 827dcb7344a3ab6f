# family: data
# about: a vocabulary numbers rare words when a sample with them is read
# expect: refused EngineError "the data set"
# alone: works
import random

import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import Dataset

COMMON = ["disk", "full", "login", "failed", "ok", "timeout", "retry", "user", "root", "network", "slow", "restart"]
HOSTS = ["atlas", "borealis", "cygnus", "draco", "eridanus", "fornax"]
ROWS = 48


def messages(count, seed):
    rng = random.Random(seed)
    texts, labels = [], []
    for i in range(count):
        words = [rng.choice(COMMON) for _ in range(6)]
        label = int("failed" in words or "timeout" in words)
        if i % 11 == 7:
            words[rng.randrange(6)] = rng.choice(HOSTS)
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


class Vocabulary:
    def __init__(self, words):
        self.ids = {word: i for i, word in enumerate(["<unk>"] + words)}

    def __call__(self, text):
        return [min(self.ids.setdefault(word, len(self.ids)), ROWS - 1) for word in text.split()]


class Messages(Dataset):
    def __init__(self, texts, labels, vocabulary):
        self.texts, self.labels, self.vocabulary = texts, labels, vocabulary

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return torch.tensor(self.vocabulary(self.texts[index])), self.labels[index]


def datasets():
    vocabulary = Vocabulary(COMMON)
    return Messages(*messages(96, 4), vocabulary), Messages(*messages(24, 5), vocabulary)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(ROWS, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, tokens):
        _, hidden = self.rnn(self.embedding(tokens))
        return self.head(hidden[-1])


torch.manual_seed(2)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
history = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 4, engines_number=4)
print("loss", repr(history["loss"][-1]))
print("val_loss", repr(history["val_loss"][-1]))
print("val_accuracy", repr(history["val_accuracy"][-1]))
