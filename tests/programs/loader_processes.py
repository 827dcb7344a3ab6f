# family: random numbers
# about: two loader processes in each worker, random augmentation in them
# expect: same
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Noisy(Dataset):
    def __init__(self, n):
        self.x = np.random.RandomState(n).randn(n, 8).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i] + 0.1 * np.random.standard_normal(8).astype(np.float32)
        if np.random.random() < 0.5:
            x = x[::-1].copy()
        return torch.from_numpy(x), int(self.x[i].argmax()) % 2


def main():
    torch.manual_seed(130)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    FabricModel(model, lambda: (Noisy(60), Noisy(12)), nn.CrossEntropyLoss(), optimizer).train(
        3, 5, 4, num_dataloader_threads=2
    )


if __name__ == "__main__":
    main()
