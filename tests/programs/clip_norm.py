# family: options
# about: clip_grad_norm over all parameters; an LSTM with large losses
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Sums(Dataset):
    def __init__(self, count, seed):
        self.x = 3 * torch.randn(count, 6, 1, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i].sum(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.RNN(1, 12, num_layers=2, batch_first=True, dropout=0.1), nn.Linear(12, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def main():
    torch.manual_seed(81)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    FabricModel(model, lambda: (Sums(64, 0), Sums(16, 1)), nn.MSELoss(), optimizer).train(
        3, 4, 4, clip_grad_norm=0.5
    )


if __name__ == "__main__":
    main()
