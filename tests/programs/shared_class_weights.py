# family: callbacks
# about: a callback changes class weights in place that the loss and a dict of settings share with it
# expect: same
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(7)
x = torch.randn(90, 5)
y = (x[:, 0] > 0.6).long() + (x[:, 1] > 0.9).long()
weights = torch.ones(3)
margins = np.zeros(3, dtype=np.float32)
settings = {"temperature": 1.0, "schedule": {"epochs": []}}


def loss_function(logits, labels):
    logits = logits / settings["temperature"] - torch.from_numpy(margins)
    return F.cross_entropy(logits, labels, weight=weights) + 0.01 * len(settings["schedule"]["epochs"])


class Rebalance:
    def __init__(self, weights, margins, settings):
        self.weights = weights
        self.more = (margins, [settings])

    def on_epoch_begin(self, epoch):
        margins, (settings,) = self.more
        self.weights[1:] *= 1.5
        margins += 0.1 * epoch
        settings["temperature"] /= 1.1
        settings["schedule"]["epochs"].append(epoch)


model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
fabric = FabricModel(model, lambda: (TensorDataset(x, y), None), loss_function, optimizer,
                     user_callback=[Rebalance(weights, margins, settings)])
history = fabric.train(3, 6, engines_number=3)
print(history["loss"], weights.tolist(), settings)
