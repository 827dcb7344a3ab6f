# family: callbacks
# about: on_batch_end counts steps, smooths the loss and warms the learning rate up
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class Warmup(Callback):
    def __init__(self, steps, rate):
        self.steps, self.rate = steps, rate
        self.seen, self.smooth = 0, None

    def on_batch_begin(self, batch):
        for group in self.params["optimizer"].param_groups:
            group["lr"] = self.rate * min(1, (self.seen + 1) / self.steps)

    def on_batch_end(self, batch, logs):
        self.seen += 1
        self.smooth = logs["loss"] if self.smooth is None else 0.9 * self.smooth + 0.1 * logs["loss"]


torch.manual_seed(106)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
x = torch.randn(60, 4, generator=torch.Generator().manual_seed(106))
data = TensorDataset(x, (x[:, 3] > 0).long())
warmup = Warmup(6, 0.2)
FabricModel(
    model, lambda: (data, data), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.2),
    user_callback=[warmup],
).train(3, 4, 4)
print("steps", warmup.seen, "smooth", warmup.smooth)
