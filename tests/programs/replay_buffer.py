# family: callbacks
# about: a deque as replay buffer: a callback fills it, and `__getitem__` draws transitions from it
# expect: same
import copy
import random
from collections import deque, namedtuple

import numpy as np
import torch
from callbacks import Callback
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel

Transition = namedtuple("Transition", "state action reward following")
MEMORY = deque(maxlen=80)


class Replay(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, _):
        return random.choice(MEMORY)._asdict()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.target = copy.deepcopy(self.q).requires_grad_(False)

    def forward(self, state, action, reward, following):
        best = reward + 0.9 * self.target(following).amax(1)
        return F.smooth_l1_loss(self.q(state).gather(1, action[:, None])[:, 0], best)


class Play(Callback):
    def __init__(self, memory):
        super().__init__()
        self.memory, self.explore, self.rng = memory, 0.9, np.random.default_rng(5)

    def play(self):
        state = torch.zeros(4)
        for _ in range(24):
            action = random.randrange(2) if random.random() < self.explore else int(self.model.q(state).argmax())
            move = self.rng.normal(scale=0.1, size=4) + (0.2 if action else -0.2)
            following = state + torch.from_numpy(move).float()
            self.memory.append(Transition(state, action, -following.abs().sum(), following))
            state = following

    def on_train_begin(self):
        self.play()

    def on_epoch_end(self, epoch, logs=None):
        self.explore *= 0.7
        self.play()

    @torch.no_grad()
    def on_step_end(self, step, logs):
        for slow, fast in zip(self.model.target.parameters(), self.model.q.parameters(), strict=True):
            slow.lerp_(fast, 0.05)


def datasets():
    return Replay(), None


if __name__ == "__main__":
    torch.manual_seed(1)
    model = Agent()
    optimizer = torch.optim.Adam(model.q.parameters(), 1e-3)
    FabricModel(model, datasets, None, optimizer, user_callback=[Play(MEMORY)]).train(4, 4, 4)
    print(len(MEMORY), sum(float(t.reward) for t in MEMORY))
