"""The network and its data, shared by train.py and evaluate.py."""

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

#: Number of training samples. The order of all samples is shuffled with a fixed seed; the rest are test samples.
TRAINING_SAMPLES = 1437


class Net(nn.Module):
    """Two convolutions and two linear layers for images of 8 x 8 pixels; 10 classes."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 10)
        )

    def forward(self, images):
        return self.classifier(self.features(images))


def load_digits(data_dir):
    """Return (training set, test set) from digits.csv.gz in that folder."""
    table = np.loadtxt(os.path.join(data_dir, "digits.csv.gz"), delimiter=",", dtype=np.float32)
    table = table[np.random.RandomState(0).permutation(len(table))]
    images = torch.from_numpy(table[:, :64] / 16.0).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, 64].astype(np.int64))
    return (
        TensorDataset(images[:TRAINING_SAMPLES], labels[:TRAINING_SAMPLES]),
        TensorDataset(images[TRAINING_SAMPLES:], labels[TRAINING_SAMPLES:]),
    )


def score(model, dataset):
    """Return the fraction of a data set that the model classifies correctly."""
    model.eval()
    images, labels = dataset.tensors
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()
