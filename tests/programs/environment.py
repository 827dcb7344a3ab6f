# family: settings
# about: the script sets os.environ, which the data set and the model read in the workers
# expect: same
import os

import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

os.environ["NOISE_LEVEL"] = "0.3"
os.environ["USE_GELU"] = "1"


class Noisy(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 5, generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = float(os.environ.get("NOISE_LEVEL", "0"))
        return self.x[i] + noise * torch.randn(5), int(self.x[i].sum() > 0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 10), nn.Linear(10, 2)

    def forward(self, x):
        activation = nn.functional.gelu if os.environ.get("USE_GELU") else torch.relu
        return self.b(activation(self.a(x)))


torch.manual_seed(125)
model = Net()
FabricModel(
    model, lambda: (Noisy(60), Noisy(10)), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
).train(3, 5, 4)
