# family: state
# about: a metric of every batch counts errors for a callback
# expect: refused EngineError "errors"
from collections import Counter

import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

errors = Counter()


def error_rate(outputs, labels):
    wrong = outputs.argmax(1) != labels
    errors.update(labels[wrong].tolist())
    return wrong.float().mean().item()


class BoostWorstClass:
    def __init__(self, criterion, warm_up=1):
        self.criterion = criterion
        self.warm_up = warm_up

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        if epoch >= self.warm_up and errors:
            worst, _ = errors.most_common(1)[0]
            self.criterion.weight[worst] *= 1.5
        errors.clear()


def datasets():
    g = torch.Generator().manual_seed(80)
    x = torch.randn(120, 10, generator=g)
    y = x[:, :4].argmax(1)
    noisy = torch.rand(120, generator=g) < 0.3
    y[noisy] = torch.randint(0, 4, (int(noisy.sum()),), generator=g)
    return TensorDataset(x[:96], y[:96]), TensorDataset(x[96:], y[96:])


torch.manual_seed(8)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
criterion = nn.CrossEntropyLoss(weight=torch.ones(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = FabricModel(model, datasets, criterion, optimizer, [error_rate],
                      user_callback=[BoostWorstClass(criterion)]).train(3, 4, engines_number=4)
print("loss", repr(history["loss"][-1]))
print("val_loss", repr(history["val_loss"][-1]))
print("val_accuracy", repr(history["val_accuracy"][-1]))
print("val_error_rate", repr(history["val_error_rate"][-1]), "weights", criterion.weight.tolist())
