# family: losses
# about: several labels a sample, BCEWithLogitsLoss with pos_weight
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

TAGS = ["red", "round", "heavy", "cheap"]


class Tagged(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 7, generator=g)
        self.tags = [{TAGS[j] for j in range(4) if self.x[i, j] > 0.3} for i in range(n)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], torch.tensor([float(tag in self.tags[i]) for tag in TAGS])


def exact_match(outputs, labels):
    return ((outputs > 0) == (labels > 0)).all(1).float().mean()


torch.manual_seed(139)
model = nn.Sequential(nn.Linear(7, 20), nn.ReLU(), nn.Linear(20, len(TAGS)))
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 1.5, 1.0]))
FabricModel(
    model, lambda: (Tagged(60, 0), Tagged(16, 1)), criterion, torch.optim.Adam(model.parameters(), lr=0.02),
    metrics=[exact_match],
).train(3, 5, 4)
