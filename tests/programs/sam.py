# family: optimizers
# about: sharpness-aware minimization, whose step computes the loss again in a closure
# expect: refused EngineError "the optimizer SAM needs a closure"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class SAM(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None, "SAM needs a closure"
        before = [p.clone() for group in self.param_groups for p in group["params"]]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=0.05)
        with torch.enable_grad():
            closure()
        for p, value in zip((p for group in self.param_groups for p in group["params"]), before):
            p.copy_(value)
        super().step()


torch.manual_seed(17)
x = torch.randn(80, 6)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = SAM(model.parameters(), 0.1)
FabricModel(model, lambda: (data, None), nn.CrossEntropyLoss(), optimizer).train(2, 4, engines_number=4)
