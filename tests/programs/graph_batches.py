# family: batches
# about: graphs as ((features, adjacency), label), nested tuples from the collate function
# expect: same
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Graphs(Dataset):
    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100 + i)
        nodes = int(torch.randint(3, 7, (), generator=g))
        edges = (torch.rand(nodes, nodes, generator=g) < 0.4).float()
        edges = ((edges + edges.T + torch.eye(nodes)) > 0).float()
        return torch.randn(nodes, 4, generator=g), edges, int(edges.sum()) % 3


def collate(graphs):
    most = max(len(features) for features, _, _ in graphs)
    features, adjacency = torch.zeros(len(graphs), most, 4), torch.zeros(len(graphs), most, most)
    for i, (x, a, _) in enumerate(graphs):
        features[i, :len(x)], adjacency[i, :len(x), :len(x)] = x, a
    return (features, adjacency), torch.tensor([label for *_, label in graphs])


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, features, adjacency):
        degree = adjacency.sum(-1, keepdim=True).clamp(min=1)
        h = torch.relu(self.first(adjacency @ features / degree))
        h = torch.relu(self.second(adjacency @ h / degree))
        return self.out(h.sum(1))


torch.manual_seed(32)
net = GCN()
FabricModel(
    net, lambda: (Graphs(66, 1), Graphs(9, 2)), nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), 5e-3),
    fn_batch_collate=collate,
).train(3, 4, 4)
