# family: generative
# about: WGAN-GP; the critic's phase differentiates twice, each phase has its own scheduler
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
        self.maker = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 3))

    def forward(self, x):
        return self.critic(x)


def critic_loss(model, batch):
    real = batch[0]
    fake = model.maker(torch.randn(real.shape[0], 2)).detach()
    share = torch.rand(real.shape[0], 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    slope, = torch.autograd.grad(model.critic(between).sum(), between, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    return model.critic(fake).mean() - model.critic(real).mean() + 10 * penalty


def maker_loss(model, batch):
    return -model.critic(model.maker(torch.randn(batch[0].shape[0], 2))).mean()


torch.manual_seed(8)
pair = Pair()
optimizers = {
    "critic": torch.optim.Adam(pair.critic.parameters(), lr=1e-3, betas=(0.0, 0.9)),
    "maker": torch.optim.RMSprop(pair.maker.parameters(), lr=1e-3),
}
schedulers = {name: torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for name, one in optimizers.items()}
real = torch.randn(60, 3, generator=torch.Generator().manual_seed(3)) * torch.tensor([1.0, 0.5, 2.0])
fabric = FabricModel(
    pair, lambda: (TensorDataset(real), None), {"critic": critic_loss, "maker": maker_loss}, optimizers,
    lr_scheduler=schedulers,
)
fabric.train(3, 5, 4)
