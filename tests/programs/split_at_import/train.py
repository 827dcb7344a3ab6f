# family: data
# about: a module beside the script splits the data at import with np.random
# expect: same
import numpy as np
import torch
from torch import nn

from fabric_model import FabricModel

np.random.seed(123)
torch.manual_seed(123)

import data  # noqa: E402 - the split comes from the seeded generator

model = nn.Sequential(nn.Linear(data.FEATURES, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
FabricModel(model, data.datasets, nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)
