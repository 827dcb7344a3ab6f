# family: callbacks
# about: callbacks move values of a module of the user that the model and the loss read
# expect: same
import torch
from torch.utils.data import TensorDataset

from fabric_model import FabricModel
from parts import Cool, Net, loss


def datasets():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long()), TensorDataset(x[:8], (x[:8, 0] > 0).long())


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 0.02)
FabricModel(model, datasets, loss, optimizer, user_callback=Cool()).train(4, 4, 4)
