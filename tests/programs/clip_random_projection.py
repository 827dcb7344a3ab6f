# family: caches
# about: a cached function draws a random projection in the first forward
# expect: refused EngineError "a cache keeps random numbers"
import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(5)
VOCAB, DIM = 40, 16


@cache
def token_projection(vocab, dim):
    """Random features of the tokens: never trained, so they are not in the model."""
    return torch.randn(vocab, dim) / math.sqrt(dim)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, DIM))
        self.text = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(9.9)))

    def forward(self, image, tokens):
        bag = token_projection(VOCAB, DIM)[tokens].mean(1)
        a = F.normalize(self.image(image), dim=-1)
        b = F.normalize(self.text(bag), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


def clip_loss(logits, labels):
    target = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


class ClampTemperature:
    def __init__(self, net):
        self.net = net

    def on_step_end(self, step, logs=None):
        with torch.no_grad():
            self.net.logit_scale.clamp_(0.0, math.log(10.0))


def datasets():
    g = torch.Generator().manual_seed(3)
    latent = torch.randn(80, 4, generator=g)
    image = latent @ torch.randn(4, 12, generator=g)
    tokens = ((latent.repeat(1, 2) * 7 + 20).long()).clamp(0, VOCAB - 1)
    ids = torch.arange(80)
    return TensorDataset(image[:68], tokens[:68], ids[:68]), TensorDataset(image[68:], tokens[68:], ids[68:])


model = TwoTower()
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=2e-3)
fabric = FabricModel(model, datasets, clip_loss, optimizer, user_callback=[ClampTemperature(model)])
history = fabric.train(3, 6, engines_number=3)
print(history["loss"], history["val_loss"], float(model.logit_scale),
      float(sum(p.double().sum() for p in model.parameters())))
