# family: generative
# about: a GAN whose step function steps a second optimizer
# expect: refused EngineError "optimizer"
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(1)
generator = nn.Linear(2, 2)
discriminator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
model = nn.ModuleDict({"g": generator, "d": discriminator})
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)


def step(model, data, eva, train_loader, fn_args):
    real, _ = data
    fake = model.g(torch.randn_like(real))
    opt_d.zero_grad()
    scores = torch.cat([model.d(real), model.d(fake.detach())])
    truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
    loss_d = F.binary_cross_entropy_with_logits(scores, truth)
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = F.binary_cross_entropy_with_logits(model.d(fake), torch.ones(len(real), 1))
    loss_g.backward()
    opt_g.step()
    return 0, loss_g.item() + loss_d.item()


def datasets():
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, torch.zeros(64)), TensorDataset(x[:8], torch.zeros(8))


FabricModel(model, datasets, F.mse_loss, opt_g, fn_step_train=step).train(2, 4, 4, validation_freq=0)
