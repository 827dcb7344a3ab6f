# family: architectures
# about: self-distillation with several crops of each sample
# expect: same
import math
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(51)
SIGNAL, OUT, TOTAL = 32, 12, 24

class Signals(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(7)
        t = torch.linspace(0, 6.28, SIGNAL)
        frequency = torch.randint(1, 5, (n, 1), generator=g)
        self.x = torch.sin(frequency * t + 6.28 * torch.rand(n, 1, generator=g))

    def __len__(self):
        return len(self.x)

    def crop(self, x, size):
        start = int(torch.randint(0, SIGNAL - size + 1, ()))
        crop = x[start:start + size] + 0.1 * torch.randn(size)
        return nn.functional.interpolate(crop[None, None], size=16, mode="linear")[0, 0]

    def __getitem__(self, i):
        return {"large": torch.stack([self.crop(self.x[i], 24) for _ in range(2)]),
                "small": torch.stack([self.crop(self.x[i], 10) for _ in range(4)])}

def encoder():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, OUT))

class Dino(nn.Module):
    fabric_buffers = {"center": "mean"}

    def __init__(self):
        super().__init__()
        self.student, self.teacher = encoder(), encoder()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.register_buffer("center", torch.zeros(OUT))

    def forward(self, large, small):
        with torch.no_grad():
            seen = self.teacher(large)                          # [B, 2, OUT]
            target = ((seen - self.center) / 0.05).softmax(-1)
            if self.training:
                self.center.lerp_(seen.mean((0, 1)), 0.1)
        guess = (self.student(torch.cat([large, small], 1)) / 0.1).log_softmax(-1)
        pairs = [(i, j) for i in range(target.size(1)) for j in range(guess.size(1)) if i != j]
        loss = sum(-(target[:, i] * guess[:, j]).sum(-1).mean() for i, j in pairs) / len(pairs)
        return {"loss": loss, "logits": guess[:, 0]}

class Teacher:
    def __init__(self):
        self.done = 0

    def on_step_end(self, step, logs):
        momentum = 1 - 0.04 * (math.cos(math.pi * self.done / TOTAL) + 1) / 2
        self.done += 1
        with torch.no_grad():
            for t, s in zip(self.model.teacher.parameters(), self.model.student.parameters()):
                t.lerp_(s, 1 - momentum)

model = Dino()
optimizer = torch.optim.AdamW(model.student.parameters(), lr=3e-3, weight_decay=0.04)
fabric = FabricModel(model, lambda: (Signals(96), None), None, optimizer, user_callback=[Teacher()], clip_grad_norm=3.0)
history = fabric.train(4, 4, engines_number=4)
print(history["loss"], model.center.tolist(),
      float(sum(p.detach().double().abs().sum() for p in model.teacher.parameters())))
