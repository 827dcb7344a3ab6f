# family: losses
# about: two heads; a loss module with learned uncertainty weighs their losses
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Faces(Dataset):
    def __init__(self, n, seed):
        self.x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        return x, {"age": x.sum().view(1), "kind": int(x.argmax()) % 3}


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.age, self.kind = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x):
        h = self.body(x)
        return {"age": self.age(h), "kind": self.kind(h)}


class Uncertainty(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(2))

    def forward(self, outputs, labels):
        losses = torch.stack([F.mse_loss(outputs["age"], labels["age"]),
                              F.cross_entropy(outputs["kind"], labels["kind"])])
        return (losses * (-self.log_variance).exp() + self.log_variance).sum()


if __name__ == "__main__":
    torch.manual_seed(137)
    model, criterion = Heads(), Uncertainty()
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=0.01)
    FabricModel(model, lambda: (Faces(60, 0), Faces(12, 1)), criterion, optimizer).train(3, 5, 4)
    print("log variance", criterion.log_variance.tolist())
