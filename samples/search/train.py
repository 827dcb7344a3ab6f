"""Two spirals, told apart by a small network: a program with parameters for a search.

    dlicmd --hpo-start samples/search/search.yaml --model-dir samples/search --follow

The parameters of an experiment are in config.json. Without that file, the program uses its defaults:

    dlicmd run samples/search/train.py
"""

import json
import math
import os
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

# A backend provides the engine in FABRIC_HOME. Without a backend, use the installed engine.
if os.environ.get("FABRIC_HOME"):
    sys.path.insert(0, os.path.join(os.environ["FABRIC_HOME"], "libs", "fabric.zip"))

from fabric_model import FabricModel

DEFAULTS = {"learning_rate": 0.01, "hidden": 16, "activation": "relu", "epochs": 6}


def parameters():
    """Return the parameters of this experiment."""
    try:
        with open("config.json", encoding="utf-8") as file:
            return {**DEFAULTS, **json.load(file)}
    except FileNotFoundError:
        return DEFAULTS


def spirals(count, seed):
    """Return points on two spirals, and the number of the spiral of each."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.rand(count, generator=generator) * 2 * math.pi + 0.5
    label = torch.arange(count) % 2
    angle = turn + label * math.pi
    points = torch.stack([angle.cos(), angle.sin()], 1) * turn[:, None] / 4
    return TensorDataset(points + torch.randn(count, 2, generator=generator) * 0.06, label)


def main():
    params = parameters()
    print(f"parameters: {params}")
    hidden = int(params["hidden"])
    activation = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[params["activation"]]
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, hidden), activation(), torch.nn.Linear(hidden, hidden), activation(),
        torch.nn.Linear(hidden, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=float(params["learning_rate"]))

    def get_datasets():
        return spirals(2048, seed=1), spirals(512, seed=2)

    edt_m = FabricModel(model, get_datasets, F.cross_entropy, optimizer)
    edt_m.train(int(params["epochs"]), 32, 2)


if __name__ == "__main__":
    main()
