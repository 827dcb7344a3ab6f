# family: batches
# about: samples are (a, b, label); the model takes a and b
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class TwoTowers(nn.Module):
    def __init__(self, users=12, items=20, width=6):
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width, sparse=False)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(1) + self.bias


def ratings():
    g = torch.Generator().manual_seed(0)
    users, items = torch.randint(0, 12, (90,), generator=g), torch.randint(0, 20, (90,), generator=g)
    stars = ((users * 7 + items * 3) % 5).float()
    return TensorDataset(users[:72], items[:72], stars[:72]), TensorDataset(users[72:], items[72:], stars[72:])


def main():
    torch.manual_seed(31)
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=1e-4)
    fabric = FabricModel(model, ratings, nn.MSELoss(), optimizer)
    history = fabric.train(epoch_number=3, batch_size=6, engines_number=4)
    print("history", history["val_loss"])


if __name__ == "__main__":
    main()
