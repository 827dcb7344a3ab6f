"""The network of samples/digits."""

from torch import nn


class Net(nn.Module):
    """Two convolutions and two linear layers for images of 8 x 8 pixels; 10 classes."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 10)
        )

    def forward(self, images):
        return self.classifier(self.features(images))
