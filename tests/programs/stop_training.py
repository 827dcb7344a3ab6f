# family: callbacks
# about: a callback that ends training by model.stop_training
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class GoodEnough(Callback):
    def __init__(self, loss):
        self.loss = loss
        self.stopped = None

    def on_validation_end(self, epoch, logs):
        if logs["val_loss"] < self.loss:
            self.model.stop_training = True
            self.stopped = epoch


def main():
    torch.manual_seed(105)
    model = nn.Linear(2, 1)
    x = torch.randn(48, 2, generator=torch.Generator().manual_seed(105))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    callback = GoodEnough(0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04)
    history = FabricModel(
        model, lambda: (data, data), nn.MSELoss(), optimizer, user_callback=[callback]
    ).train(30, 4, 4)
    print("history", len(history["loss"]), callback.stopped)


if __name__ == "__main__":
    main()
