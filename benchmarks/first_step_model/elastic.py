"""The model trained with FabricModel."""

import torch.nn.functional as F
from fabric_model import FabricModel
from parts import TellingSGD, datasets, network

model = network()
FabricModel(model, datasets, F.cross_entropy, TellingSGD(model.parameters(), lr=0.01)).train(1, 32, 2)
