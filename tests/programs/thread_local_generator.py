# family: data
# about: a thread of the data set keeps a generator of its own
# expect: refused EngineError "differs when it is read again"
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(41)


class AugmentedSignals(Dataset):
    """Decodes and augments outside of the main thread; NumPy generators are not thread safe, so each thread has one."""

    def __init__(self, n, seed, augment):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, 3, n)
        t = np.linspace(0, 6.28, 24)
        self.x = np.sin(t[None] * (self.y[:, None] + 1) + rng.normal(0, 0.3, (n, 1))).astype(np.float32)
        self.augment = augment
        self.local = threading.local()
        self.pool = ThreadPoolExecutor(max_workers=1)

    def _rng(self):
        if not hasattr(self.local, "rng"):
            self.local.rng = np.random.default_rng(1234)
        return self.local.rng

    def _load(self, i):
        x = self.x[i].copy()
        if self.augment:
            rng = self._rng()
            x = np.roll(x, rng.integers(0, 6)) * rng.uniform(0.8, 1.2) + rng.normal(0, 0.1, x.shape)
        return torch.from_numpy(x.astype(np.float32))[None], int(self.y[i])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.pool.submit(self._load, i).result()


def datasets():
    return AugmentedSignals(96, 1, True), AugmentedSignals(24, 2, False)


model = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 8, 5, stride=2), nn.ReLU(),
                      nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
history = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(3, 8, engines_number=3)
print(history["loss"], history["val_loss"], float(sum(p.double().sum() for p in model.parameters())))
