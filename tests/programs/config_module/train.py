# family: settings
# about: the main script changes a configuration module, which modules of the workers read
# expect: same
import sys

import torch

import config
from fabric_model import FabricModel
from network import Network, datasets, loss

config.HIDDEN = 24
config.OPTIONS["dropout"] = 0.4
config.OPTIONS["noise"] = 0.2 if "--quiet" not in sys.argv else 0.0
config.SEED = 124


def main():
    torch.manual_seed(config.SEED)
    model = Network()
    FabricModel(model, datasets, loss, torch.optim.Adam(model.parameters(), lr=config.OPTIONS["lr"])).train(3, 5, 4)


if __name__ == "__main__":
    main()
