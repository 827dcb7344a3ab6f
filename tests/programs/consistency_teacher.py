# family: callbacks
# about: a mean teacher inside the model, a parameter group that a callback adds, stochastic depth
# expect: same
import copy

import torch
import torch.nn.functional as F
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.block = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)
        self.keep = 1.0

    def forward(self, x, skip=False):
        x = self.backbone(x)
        if not skip:
            x = x + self.block(x)
        return self.head(x)


class MeanTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Network()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.rng = torch.Generator().manual_seed(50)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x):
        if not torch.is_grad_enabled():
            return self.student(x)
        skip = self.training and bool(torch.rand((), generator=self.rng) > self.student.keep)
        noise = 0.1 * torch.randn(x.shape, generator=self.rng).to(x.device)
        out = self.student(x + noise, skip)
        with torch.no_grad():
            target = self.teacher(x)
        return out, target


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.consistency = 0.0

    def forward(self, outputs, labels):
        if isinstance(outputs, torch.Tensor):
            return F.cross_entropy(outputs, labels)
        out, target = outputs
        return F.cross_entropy(out, labels) + self.consistency * F.mse_loss(out.softmax(1), target.softmax(1))


class Schedule:
    def __init__(self, loss, decay=0.9):
        self.loss = loss
        self.decay = decay

    def on_epoch_begin(self, epoch):
        self.model.student.keep = 1.0 - 0.15 * epoch
        if epoch == 1:
            backbone = self.model.student.backbone.requires_grad_(True)
            self.params["optimizer"].add_param_group({"params": list(backbone.parameters()), "lr": 0.005})

    def on_step_begin(self, step):
        self.loss.consistency = min(2.0, step / 6)

    @torch.no_grad()
    def on_step_end(self, step, logs):
        student, teacher = self.model.student, self.model.teacher
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.lerp_(s, 1 - self.decay)
        for t, s in zip(teacher.buffers(), student.buffers()):
            t.copy_(s)


def datasets():
    x = torch.randn(120, 20, generator=torch.Generator().manual_seed(51))
    y = x[:, :4].argmax(1)
    return TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])


torch.manual_seed(5)
model = MeanTeacher()
model.student.backbone.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
loss = Loss()
history = FabricModel(model, datasets, loss, optimizer, user_callback=[Schedule(loss)]).train(3, 4, engines_number=4)
print("loss", repr(history["loss"][-1]))
print("val_loss", repr(history["val_loss"][-1]))
print("val_accuracy", repr(history["val_accuracy"][-1]))
groups = [(len(group["params"]), group["lr"]) for group in optimizer.param_groups]
print("groups", groups, "consistency", loss.consistency)
print("teacher", repr(sum(p.double().abs().sum().item() for p in model.teacher.parameters())))
