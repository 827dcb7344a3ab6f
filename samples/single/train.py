"""Single-process PyTorch: a multilayer perceptron on handwritten digits.

    dlicmd --exec-start PyTorch --model-dir samples/single --model-main train.py \
        --cs-datastore-meta type=fs,data_path=./samples/digits/data --follow -- --epochs 20
"""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Sequential):
    """The kernel `torch` finds this class for the weights, because the import of this file only defines things."""

    def __init__(self):
        super().__init__(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def load(data_dir):
    """Return (train images, train labels, test images, test labels). Each line of the file has 64 pixels (0 to 16)
    and a label."""
    table = np.loadtxt(os.path.join(data_dir, "digits.csv.gz"), delimiter=",", dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(table))
    images = torch.from_numpy(table[order, :64] / 16.0)
    labels = torch.from_numpy(table[order, 64].astype(np.int64))
    cut = int(0.8 * len(table))
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels, test_images, test_labels = (part.to(device) for part in load(os.environ["DATA_DIR"]))
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        model.train()
        total = 0.0
        for batch in torch.randperm(len(images), device=device).split(args.batch_size):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
        print(f"epoch {epoch}/{args.epochs}  loss {total / len(images):.4f}  test accuracy {accuracy:.4f}")

    # `dlicmd --exec-trainresult` fetches all files below RESULT_DIR/model.
    model_dir = os.path.join(os.environ["RESULT_DIR"], "model")
    os.makedirs(model_dir, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(model_dir, "digits.pth"))


if __name__ == "__main__":
    main()
