# family: data
# about: packed graphs, a normalization with declared buffers, a sampler class, a short last step
# expect: same
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

CLASSES, FEATURES, HIDDEN = 3, 6, 24

torch.manual_seed(7)
np.random.seed(7)


class CommunityGraphs(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.graphs = []
        for _ in range(count):
            nodes = int(rng.integers(5, 20))
            y = rng.integers(0, CLASSES, nodes)
            chance = np.where(y[:, None] == y[None, :], 0.6, 0.1)
            src, dst = np.nonzero(np.triu(rng.random((nodes, nodes)) < chance, 1))
            edges = np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])])
            x = rng.normal(size=(nodes, FEATURES))
            x[np.arange(nodes), y] += 0.8
            self.graphs.append((x.astype(np.float32), edges.astype(np.int64), y.astype(np.int64)))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        return self.graphs[index]


class PackGraphs:
    """Packs graphs into one, and leaves out some edges."""

    def __init__(self, drop_edges=0.1, seed=11):
        self.drop_edges = drop_edges
        self.rng = np.random.default_rng(seed)

    def __call__(self, samples):
        xs, edges, owners, ys, offset = [], [], [], [], 0
        for number, (x, edge, y) in enumerate(samples):
            kept = self.rng.random(edge.shape[1]) >= self.drop_edges
            xs.append(torch.from_numpy(x))
            edges.append(torch.from_numpy(edge[:, kept] + offset))
            owners.append(torch.full((len(x),), number))
            ys.append(torch.from_numpy(y))
            offset += len(x)
        return (torch.cat(xs), torch.cat(edges, 1), torch.cat(owners)), torch.cat(ys)


class BySize:
    """Graphs of similar size stand together; the groups come in a new order in each epoch."""

    def __init__(self, dataset, group=8):
        self.sizes = [len(x) for x, _, _ in dataset.graphs]
        self.group = group
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        generator = torch.Generator().manual_seed(1000 + self.epoch)
        noise = torch.rand(len(self.sizes), generator=generator).tolist()
        order = sorted(range(len(self.sizes)), key=lambda i: self.sizes[i] + 2 * noise[i])
        groups = [order[i:i + self.group] for i in range(0, len(order), self.group)]
        for g in torch.randperm(len(groups), generator=generator).tolist():
            yield from groups[g]


class PackNorm(nn.Module):
    """Normalizes over all nodes of the packed graph."""

    fabric_buffers = {"center": "mean", "spread": "mean", "nodes_seen": "sum"}

    def __init__(self, width, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("nodes_seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            center, spread = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                share = 1.0 if int(self.nodes_seen) == 0 else self.momentum
                self.center.lerp_(center, share)
                self.spread.lerp_(spread, share)
                self.nodes_seen += len(x)
        else:
            center, spread = self.center, self.spread
        return (x - center) / (spread + 1e-5).sqrt() * self.scale + self.shift


class GraphLayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.neighbours = nn.Linear(inputs, outputs, bias=False)
        self.norm = PackNorm(outputs)

    def forward(self, x, edges):
        src, dst = edges
        total = torch.zeros_like(x).index_add_(0, dst, x[src])
        degree = torch.zeros(len(x), 1).index_add_(0, dst, torch.ones(len(dst), 1))
        return F.relu(self.norm(self.own(x) + self.neighbours(total / degree.clamp(min=1))))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GraphLayer(FEATURES, HIDDEN)
        self.second = GraphLayer(HIDDEN, HIDDEN)
        self.head = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x, edges, owner):
        x = F.dropout(self.first(x, edges), 0.1, self.training)
        x = self.second(x, edges)
        graphs = int(owner.max()) + 1
        size = torch.bincount(owner, minlength=graphs).unsqueeze(1)
        pooled = torch.zeros(graphs, x.shape[1]).index_add_(0, owner, x) / size
        return self.head(torch.cat([x, pooled[owner]], 1))


def datasets():
    return CommunityGraphs(100, seed=1), CommunityGraphs(24, seed=2)


model = GraphNet()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer,
                     fn_batch_collate=PackGraphs(), sampler=BySize)
history = fabric.train(3, 8, 4)
print(f"loss {history['val_loss'][-1]:.6f} accuracy {history['val_accuracy'][-1]:.4f}")
