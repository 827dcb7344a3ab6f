# family: data
# about: the step changes samples in the storage of the data set
# expect: refused EngineError "the same batch gives a different result"
import torch
from torch import nn
from torch.utils.data import Dataset

from fabric_model import FabricModel

torch.manual_seed(71)
FRAME = 16

class Frames(Dataset):
    """Frames of one long recording; a frame is a view, nothing is copied."""

    def __init__(self, recording, labels, first, last):
        self.recording, self.labels, self.first, self.last = recording, labels, first, last

    def __len__(self):
        return self.last - self.first

    def __getitem__(self, i):
        k = self.first + i
        return self.recording[k * FRAME:(k + 1) * FRAME], self.labels[k]

def datasets():
    g = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 3, (120,), generator=g)
    t = torch.arange(FRAME) / FRAME * 6.28
    recording = torch.sin((labels[:, None] + 1) * t) + 0.4 * torch.randn(120, FRAME, generator=g)
    recording = recording.reshape(-1)
    return Frames(recording, labels, 0, 96), Frames(recording, labels, 96, 120)

def zero_copy(samples):
    frames, labels = zip(*samples)
    first = frames[0]
    offset = first.storage_offset()
    adjacent = all(f.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
                   and f.storage_offset() == offset + n * FRAME for n, f in enumerate(frames))
    batch = torch.as_strided(first, (len(frames), FRAME), (FRAME, 1), offset) if adjacent else torch.stack(frames)
    return batch, torch.stack(labels)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 1.0
        self.body = nn.Sequential(nn.Linear(FRAME, 24), nn.ReLU(), nn.Linear(24, 3))

    def forward(self, x):
        if self.training:
            x.mul_(self.gain)                                   # gain augmentation, saves a copy
        return self.body(x)

class Gain:
    def on_epoch_begin(self, epoch):
        self.model.gain = 1.0 if epoch < 2 else 1.0 + 0.15 * (epoch - 1)

net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
fabric = FabricModel(net, datasets, nn.CrossEntropyLoss(), optimizer, fn_batch_collate=zero_copy,
                     user_callback=[Gain()], shuffle=False)
history = fabric.train(4, 8, engines_number=3)
print(history["loss"], history["val_loss"], float(net.body[0].weight.detach().double().abs().sum()))
