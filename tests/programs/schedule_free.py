# family: optimizers
# about: a schedule-free optimizer, whose modes callbacks switch before checkpoints and validations
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from callbacks import Callback
from fabric_model import FabricModel


class ScheduleFreeSGD(torch.optim.Optimizer):
    """Gradients are taken between the iterate z and its average, which is what `eval` leaves in the parameters."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "training": False})

    @torch.no_grad()
    def eval(self):
        self._switch(False, lambda beta: 1 - 1 / beta)

    @torch.no_grad()
    def train(self):
        self._switch(True, lambda beta: 1 - beta)

    def _switch(self, training, weight):
        for group in self.param_groups:
            if group["training"] != training:
                group["training"] = training
                for p in group["params"]:
                    if p in self.state:
                        p.lerp_(self.state[p]["z"], weight(group["beta"]))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["training"]:
                raise RuntimeError("call train() first")
            group["k"] += 1
            average = 1 / group["k"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, average)
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - average) - 1))
                z.sub_(p.grad, alpha=group["lr"])


class Modes(Callback):
    def on_epoch_begin(self, epoch):
        self.params["optimizer"].train()

    def on_epoch_end(self, epoch, save_model=False):
        self.params["optimizer"].eval()


def datasets():
    x = torch.randn(80, 6, generator=torch.Generator().manual_seed(3))
    y = x[:, :3].argmax(1)
    return TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])


if __name__ == "__main__":
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = ScheduleFreeSGD(model.parameters())
    fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=[Modes()], save_best=True)
    print(fabric.train(4, 4, 4), optimizer.param_groups[0]["k"])
