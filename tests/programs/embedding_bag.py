# family: text
# about: an EmbeddingBag with offsets, which is why the model takes two inputs from a dict
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class News(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = [torch.randint(0, 40, (int(n),), generator=g)
                      for n in torch.randint(1, 9, (count,), generator=g)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate_batch(batch):
    labels = torch.stack([text.max() % 4 for text in batch])
    offsets = torch.tensor([0, *(len(text) for text in batch)])[:-1].cumsum(0)
    return {"text": torch.cat(batch), "offsets": offsets}, labels


class TextClassification(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(40, 8, sparse=False)
        self.fc = nn.Linear(8, 4)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


if __name__ == "__main__":
    torch.manual_seed(25)
    model = TextClassification()
    FabricModel(
        model, lambda: (News(64, 0), News(16, 1)), nn.CrossEntropyLoss(),
        torch.optim.SGD(model.parameters(), lr=1.0), fn_batch_collate=collate_batch,
    ).train(3, 4, 4)
