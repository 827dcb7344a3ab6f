# family: state
# about: a hook changes an attribute of a parameter in rare batches only
# expect: refused EngineError "model.head.weight.limit"
# alone: works
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(111)

class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 1)
        self.head.weight.limit = 5.0                            # of the gradient that reaches the trunk

    def forward(self, x):
        h = self.trunk(x)
        if h.requires_grad and self.training:
            weight = self.head.weight

            def calm(grad):
                norm = grad.norm().item()
                limit = getattr(weight, "limit", 5.0)
                if norm > limit:
                    weight.limit = 0.6 * limit + 0.4 * norm      # get used to the spikes of this data
                    return grad * (limit / norm)
                return grad

            h.register_hook(calm)
        return self.head(h).squeeze(-1)

def datasets():
    g = torch.Generator().manual_seed(8)
    x = torch.randn(120, 6, generator=g)
    y = x[:, 0] * x[:, 1] + 0.5 * x[:, 2] + 0.1 * torch.randn(120, generator=g)
    y[48:96:5] += 250.0 * (1 + torch.rand(10, generator=g))      # sales on holidays
    return TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])

def mae(outputs, labels):
    return (outputs - labels).abs().mean()

model = Forecaster()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
fabric = FabricModel(model, datasets, nn.MSELoss(), optimizer, metrics=[mae], shuffle=False, clip_grad_norm=20.0)
history = fabric.train(4, 4, engines_number=3)
print(history["loss"], history["mae"], history["val_loss"],
      float(sum(p.detach().double().abs().sum() for p in model.parameters())))
