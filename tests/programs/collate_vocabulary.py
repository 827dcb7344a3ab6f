# family: data
# about: a collate function that numbers words in the order in which they come
# expect: refused EngineError "changes while a batch is collated"
import torch
from torch import nn

from fabric_model import FabricModel

torch.manual_seed(15)
rows = [(" ".join(f"w{(i * 7 + j * j) % 23}" for j in range(2 + i % 4)), i % 2) for i in range(90)]
vocabulary = {"<pad>": 0}


def collate(items):
    texts = [[vocabulary.setdefault(word, len(vocabulary)) for word in text.split()] for text, _ in items]
    width = max(map(len, texts))
    labels = torch.tensor([label for _, label in items])
    return torch.tensor([text + [0] * (width - len(text)) for text in texts]), labels


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.EmbeddingBag(64, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, texts):
        return self.out(self.words(texts))


model = Bag()
optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
fabric = FabricModel(model, lambda: (rows, None), nn.CrossEntropyLoss(), optimizer, fn_batch_collate=collate)
fabric.train(3, 5, engines_number=4)
