# family: optimizers
# about: K-FAC: hooks of the optimizer's own gather factors of the gradients while batches are computed
# expect: refused EngineError "the optimizer's inputs"
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class KFAC(torch.optim.Optimizer):
    def __init__(self, model, lr=0.05, decay=0.9, damping=0.03):
        super().__init__(model.parameters(), {"lr": lr})
        self.decay, self.damping = decay, damping
        self.inputs, self.outputs = {}, {}
        self.layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
        for layer in self.layers:
            layer.register_forward_pre_hook(self.keep_input)
            layer.register_full_backward_hook(self.keep_output)

    def move(self, factors, layer, rows):
        factor = rows.t() @ rows / len(rows)
        factors.setdefault(layer, torch.eye(len(factor))).mul_(self.decay).add_(factor, alpha=1 - self.decay)

    def keep_input(self, layer, inputs):
        if torch.is_grad_enabled():
            rows = inputs[0].detach()
            self.move(self.inputs, layer, torch.cat([rows, rows.new_ones(len(rows), 1)], 1))

    def keep_output(self, layer, before, after):
        self.move(self.outputs, layer, after[0].detach() * len(after[0]))

    @torch.no_grad()
    def step(self, closure=None):
        for layer in self.layers:
            left, right = (
                torch.linalg.inv(factor + self.damping * torch.eye(len(factor)))
                for factor in (self.outputs[layer], self.inputs[layer])
            )
            change = left @ torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1) @ right
            layer.weight.add_(change[:, :-1], alpha=-self.param_groups[0]["lr"])
            layer.bias.add_(change[:, -1], alpha=-self.param_groups[0]["lr"])


def datasets():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    return data, data


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
FabricModel(model, datasets, nn.CrossEntropyLoss(), KFAC(model)).train(4, 5, 4)
