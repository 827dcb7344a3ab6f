# family: models
# about: a model in nn.DataParallel; the engine trains what is inside
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(134)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.DataParallel(nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def datasets():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(134))
    data = TensorDataset(x, x.argmax(1) % 3)
    return data, data


FabricModel(model, datasets, criterion, optimizer).train(3, 5, 4)
print("keys", sorted(model.state_dict())[0])
