"""An elastic training as in torchrun's guide: load the last snapshot, train, save a snapshot from time to time.

    torchrun --nnodes 2:4 ... torchrun_train.py MODEL STEPS SNAPSHOT EVERY
"""

import contextlib
import os
import sys

import parts
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def main() -> None:
    name, steps, snapshot, every = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    gpu = torch.cuda.is_available()
    # There is one agent per worker, so every worker is local rank 0 of an agent that sees one GPU.
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, workers, size = dist.get_rank(), dist.get_world_size(), parts.SIZES[name]
    network = parts.network(size).to(device)
    optimizer = parts.StampingSGD(network.parameters())
    if os.path.exists(snapshot):
        saved = torch.load(snapshot, map_location=device)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        parts.STAMPS.done = saved["step"]
    model = DistributedDataParallel(network)
    first = parts.STAMPS.done
    sampler = parts.ShardBatches(size, steps, rank, workers, first=first)
    batches = iter(DataLoader(parts.datasets(name, steps)[0], batch_sampler=sampler))
    last = len(sampler.shards) - 1
    for step in range(first, steps):
        optimizer.zero_grad()
        for part in range(last + 1):
            inputs, labels = (tensor.to(device) for tensor in next(batches))
            with model.no_sync() if part < last else contextlib.nullcontext():
                (F.cross_entropy(model(inputs), labels) * workers / parts.SHARDS).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % every == 0:
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, f"{snapshot}.new")
            os.replace(f"{snapshot}.new", snapshot)
    dist.destroy_process_group()


main()
