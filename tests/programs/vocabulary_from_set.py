# family: settings
# about: class numbers come from the order of a set of names
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

RECORDS = [(name, number) for number in range(16) for name in ("cat", "dog", "horse", "cow", "sheep")]


class Animals(Dataset):
    def __init__(self, records):
        self.records = records
        self.classes = list({name for name, _ in records})

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        name, number = self.records[i]
        x = torch.tensor([len(name), number % 4, ord(name[0]) % 7], dtype=torch.float32)
        return x, self.classes.index(name)


def main():
    torch.manual_seed(40)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    FabricModel(
        model, lambda: (Animals(RECORDS), Animals(RECORDS[:20])), nn.CrossEntropyLoss(), optimizer
    ).train(3, 4, 4)


if __name__ == "__main__":
    main()
