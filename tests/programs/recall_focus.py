# family: callbacks
# about: a callback sets the rate from values that only one worker has seen
# expect: refused EngineError "learning rate of group 0 differs"
# alone: works
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fabric_model import FabricModel

torch.manual_seed(121)
CLASSES = 4

class Recall:
    """Macro recall, in the way of torchmetrics."""

    def __init__(self):
        self.per_class = torch.full((CLASSES,), 0.5)            # of the last computation
        self.reset()

    def reset(self):
        self.hits, self.seen = torch.zeros(CLASSES), torch.zeros(CLASSES)

    def update(self, outputs, labels):
        right = (outputs.argmax(1) == labels).float()
        self.hits += torch.zeros(CLASSES).index_add_(0, labels.cpu(), right.detach().cpu())
        self.seen += torch.bincount(labels.cpu(), minlength=CLASSES).float()

    def compute(self):
        self.per_class = self.hits / self.seen.clamp_min(1)
        return self.per_class.mean()

class Focus:
    """After two epochs the classes with a low recall get more weight, and the rate follows the worst of them."""

    def on_validation_end(self, epoch, logs):
        if epoch >= 2:
            weight = 1.5 - recall.per_class
            self.model.class_weight.copy_(weight / weight.mean())
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * (1.2 - float(recall.per_class.min()))

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, CLASSES))
        self.register_buffer("class_weight", torch.ones(CLASSES))

    def forward(self, x):
        return self.body(x) + self.class_weight.log()           # logit adjustment

def datasets():
    g = torch.Generator().manual_seed(12)
    share = torch.tensor([0.5, 0.25, 0.15, 0.1])
    y = torch.multinomial(share, 160, replacement=True, generator=g)
    centers = torch.randn(CLASSES, 5, generator=g)
    x = centers[y] + torch.randn(160, 5, generator=g)
    return TensorDataset(x[:120], y[:120]), TensorDataset(x[120:], y[120:])

model = Classifier()
recall = Recall()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, metrics=[recall], user_callback=[Focus()])
history = fabric.train(4, 8, engines_number=3)
print(history["loss"], history["val_loss"], history["lr"], model.class_weight.tolist(),
      float(model.body[0].weight.detach().double().abs().sum()))
