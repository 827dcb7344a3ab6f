# family: ends
# about: save_best by accuracy, and early stopping by a dict
# expect: same
import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def datasets():
    g = torch.Generator().manual_seed(101)
    x = torch.randn(72, 6, generator=g)
    y = (x[:, 0] + 0.5 * torch.randn(72, generator=g) > 0).long()
    return TensorDataset(x[:48], y[:48]), TensorDataset(x[48:], y[48:])


def main():
    torch.manual_seed(101)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    history = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(
        6, 4, 4, save_best="val_accuracy", checkpoint_freq=0,
        early_stopping={"patience": 2, "monitor": "val_loss", "min_delta": 0.001, "mode": "min"},
    )
    best = max(history["val_accuracy"])
    model.load_state_dict(torch.load(os.path.join(os.environ["RESULT_DIR"], "model/train/model_epoch_best.pth")))
    model.eval()
    x, y = datasets()[1].tensors
    print("history", best, float((model(x).argmax(1) == y).float().mean()))


if __name__ == "__main__":
    main()
