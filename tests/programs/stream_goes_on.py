# family: streams
# about: a stream that goes on in each epoch where its last pass has ended
# expect: refused EngineError "keeps a value from pass to pass"
import torch
from torch import nn
from torch.utils.data import IterableDataset

from fabric_model import FabricModel


class Stream(IterableDataset):
    def __init__(self, count):
        self.count, self.position = count, 0

    def __iter__(self):
        for _ in range(self.count):
            x = torch.randn(5, generator=torch.Generator().manual_seed(self.position))
            self.position += 1
            yield x, int(x[0] > 0)

    def __len__(self):
        return self.count


if __name__ == "__main__":
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    FabricModel(model, lambda: (Stream(60), Stream(20)), nn.CrossEntropyLoss(), optimizer).train(4, 5, 4)
