# family: vision
# about: label smoothing and class weights in nn.CrossEntropyLoss
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def main():
    torch.manual_seed(11)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)

    def datasets():
        g = torch.Generator().manual_seed(11)
        x = torch.rand(75, 1, 6, 6, generator=g)
        y = (x.mean((1, 2, 3)) * 1000).long() % 3
        return TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])

    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.003, momentum=0.5)
    FabricModel(model, datasets, criterion, optimizer).train(epoch_number=3, batch_size=5, engines_number=3)


if __name__ == "__main__":
    main()
