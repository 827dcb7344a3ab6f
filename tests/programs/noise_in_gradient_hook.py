# family: random numbers
# about: hooks of parameters add noise to gradients from a generator of their own; one parameter is outside the model
# expect: same
import math

import torch
from torch import nn
from torch.nn import functional as F

from fabric_model import FabricModel

torch.manual_seed(5)
images, captions = torch.randn(64, 10), torch.randint(0, 5, (64,))


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(10, 8), nn.Embedding(5, 8)

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)


model = Clip()
log_temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
noise = torch.Generator().manual_seed(77)
for parameter in model.parameters():
    parameter.register_hook(lambda grad: grad + 1e-3 * torch.randn(grad.shape, generator=noise))


def contrast(outputs, batch):
    scores = log_temperature.exp() * outputs[0] @ outputs[1].T
    places = torch.arange(len(scores))
    return (F.cross_entropy(scores, places) + F.cross_entropy(scores.T, places)) / 2


def pairs():
    return [{"image": image, "text": text} for image, text in zip(images, captions, strict=True)]


optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [log_temperature], "lr": 0.05}], 5e-3)
history = FabricModel(model, lambda: (pairs(), None), contrast, optimizer).train(2, 4, engines_number=4)
print(history["loss"], log_temperature.item())
