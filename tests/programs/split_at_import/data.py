"""The data of the study."""
import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

FEATURES = 6
ORDER = np.random.permutation(80)
TRAIN, TEST = ORDER[:60].tolist(), ORDER[60:].tolist()


def datasets():
    x = torch.randn(80, FEATURES, generator=torch.Generator().manual_seed(0))
    whole = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
    return Subset(whole, TRAIN), Subset(whole, TEST)
