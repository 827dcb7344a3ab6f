# family: user functions
# about: a step function and a test function with fn_args: two losses, accuracy from eva
# expect: same
import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def train_step(model, data, eva, train_loader, fn_args):
    inputs, labels = data
    model.get_optimizer().zero_grad()
    outputs = model(inputs)
    loss = model.get_loss_function()(outputs, labels) + fn_args.l1 * sum(p.abs().sum() for p in model.parameters())
    loss.backward()
    return eva(outputs, labels), loss


def test(model, test_iter, fn_args):
    total = count = 0
    for inputs, labels in test_iter:
        total += F.cross_entropy(model(inputs), labels, reduction="sum").item()
        count += len(labels)
    return total / count


def datasets():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(80, 7, generator=g)
    y = (x @ torch.randn(7, 3, generator=g)).argmax(1)
    return TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--l1", type=float, default=1e-3)
    arguments = parser.parse_args()
    torch.manual_seed(74)
    model = nn.Sequential(nn.Linear(7, 20), nn.Dropout(0.3), nn.ReLU(), nn.Linear(20, 3))
    FabricModel(
        model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.01),
        fn_step_train=train_step, fn_test=test, fn_args=arguments,
    ).train(3, 4, 4)
