"""The network of the searched task, and a training without any backend."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TRAINING_SAMPLES = 1437
#: Samples of one step, in batches of BATCH.
BATCH, BATCHES = 32, 2


class Net(nn.Module):
    """Two convolutions for images of 8 x 8 pixels; 10 classes."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width * 16, 10),
        )

    def forward(self, images):
        return self.layers(images)


def load(folder: str) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test set from digits.csv.gz in a folder."""
    with gzip.open(Path(folder) / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = table[np.random.RandomState(0).permutation(len(table))]
    images = torch.from_numpy(table[:, :64] / 16.0).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64].astype(np.int64))
    return (TensorDataset(images[:TRAINING_SAMPLES], labels[:TRAINING_SAMPLES]),
            TensorDataset(images[TRAINING_SAMPLES:], labels[TRAINING_SAMPLES:]))


def trained(config: dict, epochs: int, folder: str) -> Iterator[float]:
    """Train in this process with one thread, as a script by hand does. Yield the test accuracy after each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    training, test = load(folder)
    model = Net(int(config["width"]), float(config["dropout"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["learning_rate"]), momentum=0.9)
    loader = DataLoader(training, BATCH * BATCHES, shuffle=True)
    images, labels = test.tensors
    for _ in range(epochs):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            yield (model(images).argmax(1) == labels).float().mean().item()
