# family: models
# about: functions of torch.jit.script in the script and in a module, a traced one; loss and callback hold a teacher
# expect: same
import io

import fused
import torch
from callbacks import Callback
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fabric_model import FabricModel


def load_teacher():
    net = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Dropout(0.5), nn.LayerNorm(16), nn.Linear(16, 3))
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(net.eval()), file)
    file.seek(0)
    return torch.jit.load(file).eval()


@torch.jit.script
def gelu(x):
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


class Distill(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = [teacher]

    def forward(self, outputs, labels):
        logits, x = outputs
        with torch.no_grad():
            wanted = F.log_softmax(self.teacher[0](x), -1)
        near = F.kl_div(soften(logits), wanted, log_target=True, reduction="batchmean")
        return F.cross_entropy(logits, labels) + near


class Distance(Callback):
    def __init__(self, teacher):
        self.teacher, self.values = teacher, []

    def on_epoch_end(self, epoch, logs=None):
        with torch.no_grad():
            self.values.append(float((self.teacher(torch.ones(1, 5)) - self.model(torch.ones(1, 5))[0]).norm()))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 32), nn.Linear(32, 3)

    def forward(self, x):
        return self.outer(fused.gated(gelu(self.inner(x)), 1.7)), x


def datasets():
    x = torch.randn(63, 5, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x[:48], x[:48, :3].argmax(1)), TensorDataset(x[48:], x[48:, :3].argmax(1))


torch.manual_seed(1)
soften = torch.jit.trace(lambda x: F.log_softmax(x * torch.sigmoid(x) / 2.0, -1), torch.randn(4, 3))
model = Net()
print([tuple(part.shape) for part in model(torch.randn(2, 5))])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
teacher = load_teacher()
distance = Distance(teacher)
print(FabricModel(model, datasets, Distill(teacher), optimizer, user_callback=[distance]).train(4, 4, 4))
print(distance.values)
