"""A hand-written training loop around DistributedDataParallel. It stays alive, and trains on request.

    python ddp_train.py MODEL        # RANK, WORLD_SIZE and MASTER_FILE in the environment

Each line of standard input is a block: the number of steps, and the step to mark ("200 5"). The loop prints "done"
after each block.
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


def train(model, optimizer, name: str, steps: int, device: torch.device) -> None:
    """Train one pass of `steps` steps."""
    rank, workers, size = dist.get_rank(), dist.get_world_size(), parts.SIZES[name]
    data, _ = parts.datasets(name, steps)
    sampler = parts.ShardBatches(size, steps, rank, workers)
    batches = iter(DataLoader(data, batch_sampler=sampler))
    last = len(sampler.shards) - 1
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(last + 1):
            inputs, labels = (tensor.to(device) for tensor in next(batches))
            with model.no_sync() if part < last else contextlib.nullcontext():
                # DDP divides by the number of workers.
                (F.cross_entropy(model(inputs), labels) * workers / parts.SHARDS).backward()
        optimizer.step()


def main() -> None:
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    store = f"file://{os.environ['MASTER_FILE']}"
    dist.init_process_group("nccl" if gpu else "gloo", init_method=store, rank=rank, world_size=workers)
    name = sys.argv[1]
    model = DistributedDataParallel(parts.network(parts.SIZES[name]).to(device))
    optimizer = parts.StampingSGD(model.parameters())
    for line in sys.stdin:
        steps, mark = map(int, line.split())
        parts.STAMPS.done = 0
        optimizer.param_groups[0]["marks"] = (mark, steps)
        train(model, optimizer, name, steps, device)
        print("done", flush=True)
    dist.destroy_process_group()


main()
