# family: text
# about: model(**batch) as transformers does it, with the loss in the output object
# expect: same
from collections import OrderedDict
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


@dataclass
class ClassifierOutput:
    loss: Optional[torch.Tensor] = None  # noqa: UP045
    logits: Optional[torch.Tensor] = None  # noqa: UP045


class TinyBert(nn.Module):
    def __init__(self, vocabulary=30, width=16, labels=2):
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True), 1, enable_nested_tensor=False
        )
        self.classifier = nn.Linear(width, labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.encoder(self.embeddings(input_ids), src_key_padding_mask=attention_mask == 0)
        logits = self.classifier(hidden[:, 0])
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ClassifierOutput(loss=loss, logits=logits)


class Sentences(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        length = int(torch.randint(3, 8, (), generator=g))
        ids = torch.randint(1, 30, (length,), generator=g)
        return {"input_ids": ids, "label": int(ids.sum()) % 2}


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.stack([F.pad(f["input_ids"], (0, longest - len(f["input_ids"]))) for f in features])
    return OrderedDict(
        input_ids=ids, attention_mask=(ids != 0).long(), labels=torch.tensor([f["label"] for f in features])
    )


if __name__ == "__main__":
    torch.manual_seed(42)
    model = TinyBert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = 3 * 4
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    fabric = FabricModel(
        model, lambda: (Sentences(64), Sentences(12)), None, optimizer, fn_batch_collate=collate,
        lr_scheduler=scheduler, lr_scheduler_interval="step", clip_grad_norm=1.0,
    )
    print("history", fabric.train(3, 4, 4)["val_loss"])
