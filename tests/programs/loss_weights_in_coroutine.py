# family: state
# about: coroutines keep running means of two losses
# expect: refused EngineError "mean"
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

WARMUP = 12          # batches with equal weights, as in the paper
TEMPERATURE = 0.5


def running_mean(momentum=0.9):
    """send(value) returns the mean before this value, or None during the warm-up."""
    mean, count, answer = None, 0, None
    while True:
        value = yield answer
        answer = mean if count >= WARMUP else None
        mean = value if mean is None else momentum * mean + (1 - momentum) * value
        count += 1


def started(coroutine):
    next(coroutine)
    return coroutine


means = [started(running_mean()), started(running_mean())]


def combined_loss(logits, labels):
    terms = [F.cross_entropy(logits, labels), F.multi_margin_loss(logits, labels)]
    if not torch.is_grad_enabled():
        return sum(terms)
    before = [mean.send(term.item()) for mean, term in zip(means, terms)]
    if None in before:
        return sum(terms)
    ratios = torch.tensor([term.item() / max(b, 1e-8) for term, b in zip(terms, before)])
    weights = len(terms) * F.softmax(ratios / TEMPERATURE, dim=0)
    return sum(weight * term for weight, term in zip(weights, terms))


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    centers = torch.randn(4, 10, generator=torch.Generator().manual_seed(7))
    return TensorDataset(centers[y] + torch.randn(n, 10, generator=g), y)


def datasets():
    return make_split(96, 51), make_split(32, 52)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    history = FabricModel(model, datasets, combined_loss, optimizer).train(3, 8, engines_number=4)
    print("loss    ", history["loss"])
    print("val_loss", history["val_loss"])
