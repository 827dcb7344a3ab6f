# family: callbacks
# about: a callback holds the mean teacher that the step function uses, and moves it after each step
# expect: same
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(5)
data = torch.Generator().manual_seed(1)
x = torch.randn(96, 6, generator=data)
y = (x[:, 0] * x[:, 1] > 0).long()

student = nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 2))
teacher = copy.deepcopy(student).requires_grad_(False)


class MoveTeacher:
    def __init__(self, teacher, decay):
        self.teacher, self.decay = teacher, decay
        self.pairs = None

    def on_train_begin(self):
        self.pairs = list(zip(self.teacher.parameters(), self.model.parameters()))

    @torch.no_grad()
    def on_step_end(self, step, logs):
        for slow, fast in self.pairs:
            slow.lerp_(fast, 1 - self.decay)
        self.teacher[0].weight.clamp_(-1, 1)


def step(model, data, eva, loader, arguments):
    inputs, labels = data
    optimizer = model.get_optimizer()
    optimizer.zero_grad()
    logits = model(inputs + 0.1 * torch.randn_like(inputs))
    with torch.no_grad():
        target = teacher.eval()(inputs).softmax(1)
    loss = F.cross_entropy(logits, labels) + F.kl_div(logits.log_softmax(1), target, reduction="batchmean")
    loss.backward()
    return eva(logits, labels), loss.item()


optimizer = torch.optim.SGD(student.parameters(), 0.1, momentum=0.9)
fabric = FabricModel(student, lambda: (TensorDataset(x, y), None), F.cross_entropy, optimizer,
                     user_callback=[MoveTeacher(teacher, 0.8)], fn_step_train=step)
history = fabric.train(3, 8, engines_number=3)
print(history["loss"], float(teacher[0].weight.sum()))
