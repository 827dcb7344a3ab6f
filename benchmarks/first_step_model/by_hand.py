"""The model trained with DistributedDataParallel. torchrun starts this script."""

import torch.distributed as dist
import torch.nn.functional as F
from parts import TellingSGD, datasets, network
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
train_set, _ = datasets()
model = DistributedDataParallel(network())
optimizer = TellingSGD(model.parameters(), lr=0.01)
for images, labels in DataLoader(train_set, batch_size=32, sampler=DistributedSampler(train_set)):
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
dist.destroy_process_group()
