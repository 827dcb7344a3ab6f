# family: settings
# about: a relative folder of modules on sys.path, then the script enters its folder of data and reads relative paths
# expect: same
import os
import sys

sys.path.insert(0, "lib")

import torch
from networks import Classifier
from rows import Rows, write_rows
from torch import nn

from fabric_model import FabricModel


def datasets():
    return Rows("train.csv"), Rows("test.csv")


if __name__ == "__main__":
    folder = os.path.join(os.environ["RESULT_DIR"], "data")
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    write_rows("train.csv", 96, seed=0)
    write_rows("test.csv", 16, seed=1)
    torch.manual_seed(0)
    model = Classifier(4, 2)
    FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(3, 4, 4)
