# family: user functions
# about: offline double DQN in a step function: a callback copies the target network, check='strict'
# expect: same
from collections import namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, RandomSampler

from fabric_model import FabricModel

Transition = namedtuple("Transition", "state action reward next_state done")
ACTIONS = 3


class PointMass:
    """Push a point to the origin: left, nothing, right."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.position = self.velocity = 0.0

    def reset(self):
        self.position, self.velocity = self.rng.uniform(-1, 1), 0.0
        return self.observe()

    def observe(self):
        return np.array([self.position, self.velocity, self.position * self.velocity], dtype=np.float32)

    def step(self, action):
        self.velocity = 0.8 * self.velocity + 0.2 * (action - 1) + 0.02 * self.rng.standard_normal()
        self.position += self.velocity
        done = abs(self.position) > 2
        return self.observe(), -abs(self.position) - (2.0 if done else 0.0), done


class Replay(Dataset):
    def __init__(self, transitions):
        self.transitions = transitions

    def __len__(self):
        return len(self.transitions)

    def __getitem__(self, index):
        t = self.transitions[index]
        return Transition(torch.from_numpy(t.state), torch.tensor(t.action),
                          torch.tensor(t.reward, dtype=torch.float32), torch.from_numpy(t.next_state),
                          torch.tensor(float(t.done)))


def collect(n, seed):
    env, rng = PointMass(seed), np.random.default_rng(seed + 1)
    transitions, state = [], env.reset()
    for i in range(n):
        greedy = 0 if state[0] + state[1] > 0 else 2
        action = int(rng.integers(ACTIONS)) if rng.random() < 0.5 else greedy
        next_state, reward, done = env.step(action)
        transitions.append(Transition(state, action, reward, next_state, done))
        state = env.reset() if done or i % 16 == 15 else next_state
    return transitions


def datasets():
    return Replay(collect(96, seed=4)), None


class NoisyLinear(nn.Module):
    def __init__(self, inner, outer, sigma=0.3):
        super().__init__()
        self.mean = nn.Linear(inner, outer)
        self.weight_sigma = nn.Parameter(torch.full((outer, inner), sigma / inner ** 0.5))
        self.bias_sigma = nn.Parameter(torch.full((outer,), sigma / inner ** 0.5))

    @staticmethod
    def noise(n, device):
        x = torch.randn(n, device=device)
        return x.sign() * x.abs().sqrt()

    def forward(self, x):
        if not self.training:
            return self.mean(x)
        outer, inner = self.weight_sigma.shape
        a, b = self.noise(inner, x.device), self.noise(outer, x.device)
        return F.linear(x, self.mean.weight + self.weight_sigma * torch.outer(b, a),
                        self.mean.bias + self.bias_sigma * b)


class DuellingNet(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.value = NoisyLinear(hidden, 1)
        self.advantage = NoisyLinear(hidden, ACTIONS)

    def forward(self, x):
        h = self.body(x)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(1, keepdim=True)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.target = DuellingNet(), DuellingNet()
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    def forward(self, state):
        return self.online(state)


def q_learning_step(model, data, eva, train_loader, fn_args):
    device = next(model.parameters()).device
    batch = Transition(*(t.to(device) for t in data))
    model.get_optimizer().zero_grad()
    q = model(batch.state)
    taken = q.gather(1, batch.action.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = model.online(batch.next_state).argmax(1, keepdim=True)
        future = model.target(batch.next_state).gather(1, best).squeeze(1)
        wanted = batch.reward + fn_args["gamma"] * (1 - batch.done) * future
    conservative = (q.logsumexp(1) - taken).mean()
    loss = model.get_loss_function()(taken, wanted) + fn_args["alpha"] * conservative
    loss.backward()
    return eva(q, batch.action), loss.item()


class SyncTarget:
    def __init__(self, every):
        self.every, self.steps, self.syncs = every, 0, 0

    def on_step_end(self, step, logs):
        self.steps += 1
        if self.steps % self.every == 0:
            self.model.target.load_state_dict(self.model.online.state_dict())
            self.syncs += 1


class Rollouts:
    """Return of the greedy policy in the environment, after each epoch; ends training when the task is solved."""

    def __init__(self, episodes=4, length=20, solved=-0.5):
        self.env, self.episodes, self.length, self.solved = PointMass(99), episodes, length, solved
        self.returns = []

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        online = self.model.online
        training = online.training
        online.eval()
        device = next(online.parameters()).device
        total = 0.0
        for _ in range(self.episodes):
            state = self.env.reset()
            for _ in range(self.length):
                with torch.no_grad():
                    action = int(online(torch.from_numpy(state).to(device).unsqueeze(0)).argmax(1))
                state, reward, done = self.env.step(action)
                total += reward
                if done:
                    break
        online.train(training)
        self.returns.append(float(total / self.episodes))
        if self.returns[-1] > self.solved:
            self.model.stop_training = True


torch.manual_seed(31)
np.random.seed(31)
agent = Agent()
optimizer = torch.optim.RMSprop(agent.online.parameters(), lr=3e-3, centered=True, momentum=0.5)
projected = {"steps": 0, "clipped": 0}


def max_norm(optimizer, args, kwargs, limit=2.0):
    """Projects the rows of the weights to a ball, after each step of the optimizer."""
    projected["steps"] += 1
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.ndim == 2:
                    norms = p.norm(dim=1, keepdim=True)
                    projected["clipped"] += int((norms > limit).sum())
                    p.mul_((limit / norms.clamp(min=1e-6)).clamp(max=1.0))


optimizer.register_step_post_hook(max_norm)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
sync, rollouts = SyncTarget(every=2), Rollouts()

fabric = FabricModel(agent, datasets, nn.SmoothL1Loss(), optimizer, fn_step_train=q_learning_step,
                     fn_args={"gamma": 0.95, "alpha": 0.2}, user_callback=[sync, rollouts])
history = fabric.train(3, 8, engines_number=4, lr_scheduler=scheduler, clip_grad_value=0.5, check="strict",
                       sampler=lambda train: RandomSampler(train, replacement=True, num_samples=128))

agent.eval()
grid = torch.linspace(-1, 1, 9)
states = torch.stack([grid, torch.zeros(9), torch.zeros(9)], dim=1)
with torch.no_grad():
    gap = (agent.online(states) - agent.target(states)).abs().max().item()
    policy = agent.online(states).argmax(1).tolist()

print("loss", history["loss"][-1])
print("lr", history["lr"])
print("returns", rollouts.returns)
print("syncs", sync.syncs, "optimizer steps", projected["steps"], "rows clipped", projected["clipped"])
print("policy", policy, "online-target gap", gap)
