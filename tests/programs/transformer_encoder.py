# family: text
# about: nn.TransformerEncoder with dropout over two inputs in a tuple
# expect: same
import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

import fabric_model


class Encoder(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tokens, self.segments = nn.Embedding(16, width), nn.Embedding(2, width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, 0.2, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, inputs):
        tokens, segments = inputs
        return self.head(self.layers(self.tokens(tokens) + self.segments(segments)).mean(1))


def collate(samples):
    tokens, segments, labels = default_collate(samples)
    return (tokens, segments), labels


def datasets():
    g = torch.Generator().manual_seed(3)
    tokens, segments = torch.randint(0, 16, (72, 7), generator=g), torch.randint(0, 2, (72, 7), generator=g)
    whole = TensorDataset(tokens, segments, tokens.sum(1) % 3)
    return torch.utils.data.Subset(whole, range(60)), torch.utils.data.Subset(whole, range(60, 72))


torch.manual_seed(23)
model = Encoder()
optimizer = torch.optim.RAdam(model.parameters(), lr=2e-3)
trainer = fabric_model.FabricModel(
    model, datasets, nn.CrossEntropyLoss(), optimizer, fn_batch_collate=collate
)
trainer.train(3, 5, 3)
