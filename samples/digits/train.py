"""Handwritten digits with elastic distributed training.

    dlicmd --exec-start edtPyTorch --model-dir samples/digits --model-main train.py --numWorker 2 \
        --cs-datastore-meta type=fs,data_path=./samples/digits/data --follow -- --epochs 10

The same script trains on one worker without any backend: `DATA_DIR=data python train.py`.
"""

import argparse
import os
import sys

import torch
import torch.nn.functional as F
from network import Net, load_digits, score

# A backend provides the engine in FABRIC_HOME. Without a backend, use the installed engine.
if os.environ.get("FABRIC_HOME"):
    sys.path.insert(0, os.path.join(os.environ["FABRIC_HOME"], "libs", "fabric.zip"))

from edtcallback import EDTLoggerCallback
from fabric_model import FabricModel

data_dir = os.environ.get("DATA_DIR", "/tmp")
result_dir = os.environ.get("RESULT_DIR", "/tmp")


def main():
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--engines", type=int, default=2, help="most workers, and batches per optimizer step")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    def get_datasets():
        return load_digits(data_dir)

    edt_m = FabricModel(model, get_datasets, F.cross_entropy, optimizer, driver_logger=EDTLoggerCallback())
    edt_m.train(args.epochs, args.batch_size, args.engines, checkpoint_freq=5)

    print(f"Test accuracy: {score(model, load_digits(data_dir)[1]):.4f}")
    print(f"Weights: {os.path.join(result_dir, 'model', 'train', 'model_epoch_final.pth')}")


if __name__ == "__main__":
    main()
