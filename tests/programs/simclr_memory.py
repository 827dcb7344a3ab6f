# family: architectures
# about: SimCLR with a memory queue, an own LARS, a sequence of schedulers, an averaged model, loader processes
# expect: same
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset

from fabric_model import FabricModel

EPOCHS, BATCH, TRAIN, TEST, CLASSES, DIM, MEMORY = 3, 8, 96, 32, 4, 16, 80


def gratings(n, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:12, :12] / 12.0
    images, labels = [], []
    for i in range(n):
        label = i % CLASSES
        angle = np.pi * label / CLASSES + rng.normal(0, 0.08)
        wave = np.sin(2 * np.pi * (2 + label) * (np.cos(angle) * xx + np.sin(angle) * yy) + rng.uniform(0, 6.28))
        tint = rng.uniform(0.5, 1.0, size=(3, 1, 1))
        images.append(tint * wave + rng.normal(0, 0.1, size=(3, 12, 12)))
        labels.append(label)
    return torch.tensor(np.stack(images), dtype=torch.float32), torch.tensor(labels)


class TwoViews(Dataset):
    def __init__(self, images, labels, seed):
        self.images, self.labels = images, labels
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.images)

    def augment(self, image):
        dy, dx = self.rng.integers(-2, 3, size=2)
        image = torch.roll(image, (int(dy), int(dx)), dims=(1, 2))
        if self.rng.random() < 0.5:
            image = image * torch.tensor(self.rng.uniform(0.6, 1.4, size=(3, 1, 1)), dtype=torch.float32)
        if self.rng.random() < 0.2:
            image = image.mean(0, keepdim=True).expand(3, -1, -1)
        image = image.clone()
        top, left = self.rng.integers(0, 9, size=2)
        image[:, top:top + 4, left:left + 4] = 0.0
        return image + 0.05 * torch.tensor(self.rng.standard_normal(image.shape), dtype=torch.float32)

    def __getitem__(self, index):
        image = self.images[index]
        return (self.augment(image), self.augment(image)), self.labels[index]


def datasets():
    return TwoViews(*gratings(TRAIN, 0), seed=10), TwoViews(*gratings(TEST, 1), seed=11)


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten())


class SimCLR(nn.Module):
    # each batch of a step writes its own rows of the memory, one after the other
    fabric_buffers = {"memory": "concatenate", "cursor": ("sum", MEMORY)}

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.projector = nn.Sequential(nn.Linear(24, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, DIM))
        self.register_buffer("memory", F.normalize(torch.randn(MEMORY, DIM), dim=1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    def forward(self, first, second):
        z = F.normalize(self.projector(self.encoder(torch.cat([first, second]))), dim=1)
        z1, z2 = z.chunk(2)
        negatives = self.memory.clone()
        if self.training:
            with torch.no_grad():
                rows = (self.cursor + torch.arange(len(z1), device=z1.device)) % MEMORY
                self.memory[rows] = z1.detach()
                self.cursor.add_(len(z1)).remainder_(MEMORY)
        return z1, z2, negatives


class NTXent(nn.Module):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature

    def forward(self, outputs, labels):
        z1, z2, negatives = outputs
        n = len(z1)
        z = torch.cat([z1, z2])
        inside = (z @ z.T / self.temperature).masked_fill(torch.eye(2 * n, dtype=torch.bool, device=z.device), -1e9)
        logits = torch.cat([inside, z @ negatives.T / self.temperature], dim=1)
        positive = torch.arange(2 * n, device=z.device).roll(n)
        return F.cross_entropy(logits, positive)


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-4, *, trust=0.02, adapt=True):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": adapt}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = p.grad
                if group["adapt"]:
                    update = update.add(p, alpha=group["weight_decay"])
                    p_norm, u_norm = p.norm(), update.norm()
                    rate = torch.where((p_norm > 0) & (u_norm > 0), group["trust"] * p_norm / (u_norm + 1e-9),
                                       torch.ones_like(p_norm))
                    update = update * rate
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                state["momentum_buffer"].mul_(group["momentum"]).add_(update)
                p.add_(state["momentum_buffer"], alpha=-group["lr"])
        return loss


class MomentumProbe:
    """k-NN accuracy of the averaged encoder on clean images, after each epoch."""

    def __init__(self, encoder, bank, queries, decay=0.8, k=5):
        self.average = AveragedModel(encoder, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.bank, self.queries, self.k = bank, queries, k
        self.scores = []

    def on_step_end(self, step, logs):
        self.average.update_parameters(self.model.encoder)

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        self.average.eval()
        device = next(self.average.parameters()).device
        with torch.no_grad():
            bank = F.normalize(self.average(self.bank[0].to(device)), dim=1)
            query = F.normalize(self.average(self.queries[0].to(device)), dim=1)
        near = self.bank[1].to(device)[(query @ bank.T).topk(self.k, dim=1).indices]
        votes = F.one_hot(near, CLASSES).sum(1).argmax(1)
        self.scores.append((votes == self.queries[1].to(device)).float().mean().item())


def alignment(outputs, labels):
    return (outputs[0] * outputs[1]).sum(1).mean()


def uniformity(outputs, labels):
    z = outputs[0]
    distances = (2 - 2 * z @ z.T).clamp(min=0)
    return (-2 * distances).exp().mean().log()


torch.manual_seed(7)
model = SimCLR()
decayed = [p for p in model.parameters() if p.ndim > 1]
plain = [p for p in model.parameters() if p.ndim <= 1]
optimizer = LARS([{"params": decayed}, {"params": plain, "adapt": False, "weight_decay": 0.0}], lr=0.8)

steps = EPOCHS * (TRAIN // (4 * BATCH))
scheduler = SequentialLR(optimizer, [LinearLR(optimizer, start_factor=0.1, total_iters=2),
                                     CosineAnnealingLR(optimizer, T_max=steps - 2)], milestones=[2])
probe = MomentumProbe(model.encoder, gratings(TRAIN, 0), gratings(TEST, 1))

fabric = FabricModel(model, datasets, NTXent(), optimizer, metrics=[alignment, uniformity], user_callback=[probe])
history = fabric.train(EPOCHS, BATCH, engines_number=4, num_dataloader_threads=2, lr_scheduler=scheduler,
                       lr_scheduler_interval="step", drop_last=True)

print("loss", history["loss"][-1])
print("val_loss", history["val_loss"][-1])
print("val_alignment", history["val_alignment"][-1])
print("val_uniformity", history["val_uniformity"][-1])
print("lr", history["lr"])
print("knn", probe.scores)
