# family: state
# about: a hook of the optimizer keeps a moving average of the weights, which is saved at the end
# expect: same
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.steps = 0
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        self.steps += 1
        decay = min(self.decay, self.steps / (self.steps + 10))
        for name, p in model.named_parameters():
            self.shadow[name].mul_(decay).add_(p.detach(), alpha=1 - decay)


class Keep(Callback):
    def __init__(self, ema):
        self.ema = ema

    def on_epoch_end(self, epoch, save_model=False):
        if save_model:
            torch.save(self.ema.shadow, os.path.join(os.environ["RESULT_DIR"], "ema.pth"))


def main():
    torch.manual_seed(111)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = EMA(model, 0.95)
    optimizer.register_step_post_hook(lambda *_: ema.update(model))
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(111))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    FabricModel(
        model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer, user_callback=[Keep(ema)]
    ).train(3, 5, 4)
    shadow = torch.load(os.path.join(os.environ["RESULT_DIR"], "ema.pth"))
    print("shadow", {name: value.tolist() for name, value in shadow.items()})


if __name__ == "__main__":
    main()
