# family: models
# about: gradient checkpointing of blocks with dropout
# expect: same
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2))

    def forward(self, x):
        return x + self.net(x)


class Net(nn.Module):
    def __init__(self, width=12, depth=3):
        super().__init__()
        self.stem, self.head = nn.Linear(6, width), nn.Linear(width, 2)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return self.head(x)


def main():
    torch.manual_seed(135)
    model = Net()
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(135))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    FabricModel(model, lambda: (data, data), nn.CrossEntropyLoss(), optimizer).train(3, 5, 4)


if __name__ == "__main__":
    main()
