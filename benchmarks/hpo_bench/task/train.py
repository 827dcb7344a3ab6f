"""The task as an elastic job: one experiment of the search."""

import json
import os

import torch
import torch.nn.functional as F
from fabric_model import FabricModel
from network import BATCH, BATCHES, Net, load


def main():
    with open("config.json") as file:
        config = json.load(file)
    torch.manual_seed(7)
    model = Net(int(config["width"]), float(config["dropout"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["learning_rate"]), momentum=0.9)
    FabricModel(model, lambda: load(os.environ["DATA_DIR"]), F.cross_entropy, optimizer).train(
        int(config["epochs"]), BATCH, BATCHES)


if __name__ == "__main__":
    main()
