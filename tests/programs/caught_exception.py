# family: callbacks
# about: a callback ends training by an exception, and the script goes on with what was trained
# expect: same
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(9)
x = torch.randn(90, 6)
data = TensorDataset(x, (x[:, 0] > 0.5).long())


class Enough(Exception):
    pass


class Patience:
    def __init__(self):
        self.losses = []

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        self.losses.append(logs["loss"])
        if epoch == 2:
            raise Enough(epoch)


model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.BatchNorm1d(12), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
patience = Patience()
try:
    FabricModel(model, lambda: (data, None), nn.CrossEntropyLoss(), optimizer, user_callback=[patience]).train(
        9, 4, engines_number=3
    )
except Enough as end:
    print("ended after epoch", end, patience.losses)
path = os.path.join(os.environ["RESULT_DIR"], "model", "train")
os.makedirs(path, exist_ok=True)
torch.save(model.state_dict(), os.path.join(path, "model_epoch_final.pth"))
