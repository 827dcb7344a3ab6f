# family: fine-tuning
# about: a frozen teacher, bf16, rates by layer, unfreezing by a callback, two averages of weights
# expect: same
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

from fabric_model import FabricModel

EPOCHS, BATCH, ENGINES, TRAIN, TEST, CLASSES = 3, 8, 4, 96, 40, 4
torch.set_num_threads(1)


def blobs(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    centers = torch.tensor([[3.0, 3.0], [3.0, 8.0], [8.0, 3.0], [8.0, 8.0]])[labels]
    centers = centers + 0.8 * torch.randn(n, 2, generator=g)
    axis = torch.arange(12.0)
    distance = ((axis[None, :, None] - centers[:, 0, None, None]) ** 2
                + (axis[None, None, :] - centers[:, 1, None, None]) ** 2)
    return torch.exp(-distance / 6).unsqueeze(1) + 0.3 * torch.randn(n, 1, 12, 12, generator=g), labels


class Images(Dataset):
    def __init__(self, images, labels, augment=False):
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = torch.roll(image, shift, dims=(1, 2)) + 0.1 * torch.randn_like(image)
        return image, self.labels[index]


def datasets():
    return Images(*blobs(TRAIN, 0), augment=True), Images(*blobs(TEST, 1))


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        keep = (torch.rand(len(x), 1, 1, 1, device=x.device) >= self.p).to(x.dtype)
        return x * keep / (1 - self.p)


class Block(nn.Module):
    def __init__(self, channels, drop):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
                                  nn.GELU(), nn.Conv2d(channels, channels, 1))
        self.drop = DropPath(drop)

    def forward(self, x):
        return x + self.drop(self.body(x))


class ConvNet(nn.Module):
    def __init__(self, channels, blocks, drop=0.1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, stride=2, padding=1), nn.BatchNorm2d(channels), nn.GELU())
        self.blocks = nn.ModuleList(Block(channels, drop) for _ in range(blocks))
        self.head = nn.Sequential(nn.LayerNorm(channels), nn.Dropout(0.1), nn.Linear(channels, CLASSES))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        features = x.mean((2, 3))
        return self.head(features), features


class Distiller(nn.Module):
    def __init__(self, student, teacher, student_width, teacher_width):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.hint = nn.Linear(student_width, teacher_width)
        self.teacher.requires_grad_(False).eval()

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x):
        logits, features = self.student(x)
        with torch.no_grad():
            teacher_logits, teacher_features = self.teacher(x)
        return {"logits": logits, "hint": self.hint(features),
                "teacher_logits": teacher_logits, "teacher_hint": teacher_features}


class DistillationLoss(nn.Module):
    def __init__(self, temperature=3.0, alpha=0.6, beta=0.1):
        super().__init__()
        self.temperature, self.alpha, self.beta = temperature, alpha, beta

    def forward(self, outputs, labels):
        t = self.temperature
        logits, teacher = outputs["logits"].float(), outputs["teacher_logits"].float()
        soft = F.kl_div(F.log_softmax(logits / t, dim=1), F.log_softmax(teacher / t, dim=1),
                        reduction="batchmean", log_target=True) * t * t
        hard = F.cross_entropy(logits, labels, label_smoothing=0.05)
        hint = F.mse_loss(outputs["hint"].float(), outputs["teacher_hint"].float())
        return self.alpha * soft + (1 - self.alpha) * hard + self.beta * hint


class Unfreeze:
    """Parts of the student that begin to train at the given epochs."""

    def __init__(self, schedule):
        self.schedule, self.trainable = schedule, []

    def on_epoch_begin(self, epoch):
        for name in self.schedule.get(epoch, ()):
            self.model.student.get_submodule(name).requires_grad_(True)
        self.trainable.append(sum(p.numel() for p in self.model.parameters() if p.requires_grad))


class StochasticAverage:
    """Equal average of the students at the ends of the epochs from `start` on, and its accuracy."""

    def __init__(self, student, images, labels, start):
        self.average, self.images, self.labels, self.start = copy.deepcopy(student), images, labels, start
        self.count, self.accuracy = 0, []

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        if epoch < self.start:
            return
        self.count += 1
        with torch.no_grad():
            for mine, theirs in zip(self.average.state_dict().values(), self.model.student.state_dict().values()):
                if mine.is_floating_point():
                    mine.add_((theirs.to(mine.device) - mine) / self.count)
                else:
                    mine.copy_(theirs)
            self.average.eval()
            device = next(self.average.parameters()).device
            predicted = self.average(self.images.to(device))[0].argmax(1)
        self.accuracy.append((predicted == self.labels.to(device)).float().mean().item())


def top1(outputs, labels):
    return (outputs["logits"].argmax(1) == labels).float().mean()


def agreement(outputs, labels):
    return (outputs["logits"].argmax(1) == outputs["teacher_logits"].argmax(1)).float().mean()


def calibration_error(outputs, labels):
    confidence, predicted = outputs["logits"].float().softmax(1).max(1)
    right = (predicted == labels).float()
    bins = (confidence * 5).long().clamp(max=4)
    error = 0.0
    for b in range(5):
        inside = bins == b
        if inside.any():
            error += float((confidence[inside].mean() - right[inside].mean()).abs() * inside.float().mean())
    return error


calibration_error.whole_set = True


def pretrain_teacher():
    teacher = ConvNet(16, 3, drop=0.0)
    images, labels = blobs(128, 5)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(teacher(images)[0], labels).backward()
        optimizer.step()
    return teacher


def layerwise_groups(model, lr, decay):
    """The head has the full rate, each layer below it `decay` times that of the layer above."""
    layers = [model.student.stem, *model.student.blocks, nn.ModuleList([model.student.head, model.hint])]
    groups = []
    for depth, layer in enumerate(reversed(layers)):
        matrices = [p for p in layer.parameters() if p.ndim > 1]
        vectors = [p for p in layer.parameters() if p.ndim <= 1]
        rate = lr * decay ** depth
        groups.append({"params": matrices, "lr": rate, "weight_decay": 0.02})
        groups.append({"params": vectors, "lr": rate, "weight_decay": 0.0})
    return groups


torch.manual_seed(41)
teacher = pretrain_teacher()
model = Distiller(ConvNet(8, 2), teacher, 8, 16)
model.student.stem.requires_grad_(False)
model.student.blocks[0].requires_grad_(False)

groups = layerwise_groups(model, lr=2e-2, decay=0.7)
optimizer = torch.optim.AdamW(groups)
steps = EPOCHS * math.ceil(TRAIN / (ENGINES * BATCH))
scheduler = OneCycleLR(optimizer, max_lr=[g["lr"] for g in groups], total_steps=steps, pct_start=0.4)
unfreeze = Unfreeze({1: ["blocks.0"], 2: ["stem"]})
average = StochasticAverage(model.student, *blobs(TEST, 1), start=1)

history = FabricModel(model, datasets, DistillationLoss(), optimizer, metrics=[top1, agreement, calibration_error],
                      user_callback=[unfreeze, average], precision="bf16").train(
    EPOCHS, BATCH, engines_number=ENGINES, lr_scheduler=scheduler, clip_grad_norm=5.0, ema=0.9, save_best="val_top1",
    checkpoint_freq=1, validation_freq=1)

images, labels = blobs(TEST, 1)
model.eval()
with torch.no_grad():
    student = (model.student(images)[0].argmax(1) == labels).float().mean().item()
    teacher = (model.teacher(images)[0].argmax(1) == labels).float().mean().item()

for name in ("loss", "top1", "val_loss", "val_top1", "val_agreement", "val_calibration_error", "lr"):
    print(name, history[name][-1])
print("student", student, "teacher", teacher, "averaged", average.accuracy)
print("trainable", unfreeze.trainable)
