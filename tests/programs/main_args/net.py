import __main__
from torch import nn
from torch.nn import functional as F
from __main__ import args as ARGS


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, ARGS.hidden), nn.Linear(ARGS.hidden, 2)

    def forward(self, x):
        return self.b(F.dropout(__main__.activation(self.a(x)), ARGS.drop, self.training))


def loss(outputs, labels):
    from __main__ import SCALE
    return SCALE * F.cross_entropy(outputs, labels)
