"""distPyTorch: your own DistributedDataParallel program. One process per worker; gloo on CPUs, NCCL on GPUs.

    dlicmd --exec-start distPyTorch --model-dir samples/ddp --model-main train.py --numWorker 2 \
        --cs-datastore-meta type=fs,data_path=./samples/digits/data --follow -- --epochs 20
"""

import argparse
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Sequential):
    """The kernel `torch` finds this class for the weights, because the import of this file only defines things."""

    def __init__(self):
        super().__init__(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def load(data_dir):
    """Return (training set, test set). Each line of the file has 64 pixels (0 to 16) and a label."""
    table = np.loadtxt(os.path.join(data_dir, "digits.csv.gz"), delimiter=",", dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(table))
    images = torch.from_numpy(table[order, :64] / 16.0)
    labels = torch.from_numpy(table[order, 64].astype(np.int64))
    cut = int(0.8 * len(table))
    return TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        rank=rank,
        world_size=world,
    )
    device = torch.device("cuda" if gpu else "cpu")
    torch.manual_seed(0)
    train_set, test_set = load(os.environ["DATA_DIR"])
    sampler = DistributedSampler(train_set, num_replicas=world, rank=rank)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    network = Net().to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(labels), len(labels)], device=device)
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}/{args.epochs}  loss {total[0] / total[1]:.4f}  on {world} workers", flush=True)

    if rank == 0:
        images, labels = (part.to(device) for part in test_set.tensors)
        with torch.no_grad():
            accuracy = (network(images).argmax(1) == labels).float().mean().item()
        print(f"test accuracy {accuracy:.4f}")
        model_dir = os.path.join(os.environ["RESULT_DIR"], "model")
        os.makedirs(model_dir, exist_ok=True)
        torch.save(network.state_dict(), os.path.join(model_dir, "digits.pth"))
    dist.barrier()  # no process ends before the result is written
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Skip the shutdown of the interpreter. A gloo thread (torch 2.13) may still hold a Python object from DDP's last
    # backward pass. If it releases the object during the shutdown, the process aborts.
    sys.stdout.flush()
    os._exit(0)
