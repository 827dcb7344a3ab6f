# family: architectures
# about: an ensemble by vmap over stacked parameters, with a penalty on the Jacobian
# expect: same
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, jacrev, stack_module_state, vmap
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(17)
MEMBERS, CLASSES = 5, 3


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        members = [
            nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Dropout(0.2), nn.Linear(20, CLASSES)) for _ in range(MEMBERS)
        ]
        stacked, _ = stack_module_state(members)
        self.names = {name.replace(".", "_"): name for name in stacked}
        self.stacked = nn.ParameterDict({key: nn.Parameter(stacked[name].detach().clone())
                                         for key, name in self.names.items()})
        self.skeleton = [copy.deepcopy(members[0]).to("meta")]      # in a list: no submodule

    def forward(self, x):
        skeleton = self.skeleton[0].train(self.training)
        params = {self.names[key]: value for key, value in self.stacked.items()}
        out = vmap(lambda p, rows: functional_call(skeleton, p, (rows,)), in_dims=(0, None),
                   randomness="different")(params, x)
        return out.transpose(0, 1)                                   # samples, members, classes


def smoothness(net, x):
    """Squared Jacobian of the first member at a random point near each sample."""
    p = {net.names[key]: value[0] for key, value in net.stacked.items()}
    plain = copy.deepcopy(net.skeleton[0]).eval()
    jacobian = vmap(jacrev(lambda row: functional_call(plain, p, (row[None],))[0]))(x + 0.1 * torch.randn_like(x))
    return jacobian.pow(2).sum((1, 2)).mean()


class Trainable(nn.Module):
    def __init__(self):
        super().__init__()
        self.ensemble = Ensemble()

    def forward(self, x, labels):
        out = self.ensemble(x)
        loss = F.cross_entropy(out.flatten(0, 1), labels.repeat_interleave(MEMBERS))
        if self.training:
            loss = loss + 0.01 * smoothness(self.ensemble, x)
        return {"loss": loss, "logits": out.softmax(-1).mean(1).log()}


def collate(samples):
    x, y = zip(*samples)
    return {"x": torch.stack(x), "labels": torch.stack(y)}


def datasets():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(96, 7, generator=g)
    y = (x[:, :CLASSES] + 0.3 * torch.randn(96, CLASSES, generator=g)).argmax(1)
    return TensorDataset(x[:80], y[:80]), TensorDataset(x[80:], y[80:])


model = Trainable()
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
history = FabricModel(model, datasets, None, optimizer, fn_batch_collate=collate).train(2, 8, engines_number=3)
print(history["loss"], history["val_loss"], float(sum(p.double().sum() for p in model.parameters())))
