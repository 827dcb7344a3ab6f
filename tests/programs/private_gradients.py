# family: user functions
# about: DP-SGD: clipped gradients of single samples by torch.func, noise, no backward; averaged weights
# expect: same
import torch
import torch.nn.functional as F
from fabric_model import FabricModel
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x):
        return self.body(x)


def datasets():
    x = torch.randn(124, 12, generator=torch.Generator().manual_seed(10))
    y = (x[:, :4] + 0.5 * x[:, 4:8]).argmax(1)
    return TensorDataset(x[:100], y[:100]), TensorDataset(x[100:], y[100:])


def private_step(model, data, eva, train_loader, fn_args):
    body = model.body
    device = next(body.parameters()).device
    x, y = data[0].to(device), data[1].to(device)
    weights = {name: p.detach() for name, p in body.named_parameters()}

    def sample_loss(weights, xi, yi):
        out = functional_call(body, weights, (xi.unsqueeze(0),))
        return F.cross_entropy(out, yi.unsqueeze(0)), out.squeeze(0)

    grads, (losses, out) = vmap(grad_and_value(sample_loss, has_aux=True), in_dims=(None, 0, 0))(weights, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factor = (fn_args["clip"] / (norms + 1e-6)).clamp(max=1.0)
    model.get_optimizer().zero_grad()
    for name, p in body.named_parameters():
        clipped = torch.einsum("b...,b->...", grads[name], factor)
        noise = fn_args["sigma"] * fn_args["clip"] * torch.randn_like(clipped)
        p.grad = (clipped + noise) / len(x)
    return eva(out, y), losses.mean()


class AverageLast:
    """Replaces the weights at the end by the mean over the last epochs, which carries less noise."""

    def __init__(self, count):
        self.count = count
        self.snapshots = []

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        self.snapshots.append({k: v.detach().clone() for k, v in self.model.body.state_dict().items()})
        del self.snapshots[: -self.count]

    def on_train_end(self):
        mean = {k: sum(s[k] for s in self.snapshots) / len(self.snapshots) for k in self.snapshots[0]}
        self.model.body.load_state_dict(mean)


torch.manual_seed(1)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, fn_step_train=private_step,
                     fn_args={"clip": 1.0, "sigma": 0.3}, user_callback=[AverageLast(2)])
history = fabric.train(3, 4, engines_number=4)
print("loss", repr(history["loss"][-1]))
print("val_loss", repr(history["val_loss"][-1]))
print("val_accuracy", repr(history["val_accuracy"][-1]))
print("averaged weights", repr(sum(p.detach().double().abs().sum().item() for p in model.parameters())))
