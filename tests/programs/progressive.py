# family: ends
# about: a script that trains twice: a head first, then the whole model with a smaller rate
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(147))
    data = TensorDataset(x, x.argmax(1) % 2)
    return data, data


def main():
    torch.manual_seed(147)
    body, head = nn.Sequential(nn.Linear(6, 10), nn.ReLU()), nn.Linear(10, 2)
    model = nn.Sequential(body, head)
    body.requires_grad_(False)
    first = FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(head.parameters(), lr=0.05))
    before = first.train(3, 5, 4)
    body.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    after = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(2, 5, 4)
    print("history", before["loss"], after["loss"])


if __name__ == "__main__":
    main()
