from torch import nn


class Classifier(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, classes))

    def forward(self, x):
        return self.layers(x)
