# family: callbacks
# about: a list of 1500 transitions that data set and callback share; the callback replaces some after each epoch
# expect: same
import random

import torch
from callbacks import Callback
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Replay(Dataset):
    def __init__(self, memory):
        self.memory = memory

    def __len__(self):
        return 48

    def __getitem__(self, _):
        return random.choice(self.memory)


class Collect(Callback):
    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def on_epoch_end(self, epoch, logs=None):
        for place in random.sample(range(len(self.memory)), 700):
            state = torch.randn(4)
            self.memory[place] = (state, self.model(state).detach().tanh())


if __name__ == "__main__":
    torch.manual_seed(2)
    memory = [(state, state[:2].sin()) for state in torch.randn(1500, 4)]
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    collect = Collect(memory)
    FabricModel(model, lambda: (Replay(memory), None), F.mse_loss, optimizer, user_callback=[collect]).train(4, 4, 4)
    print(sum(float(wanted.sum()) for _, wanted in memory))
