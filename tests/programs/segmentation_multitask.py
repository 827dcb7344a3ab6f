# family: losses
# about: a U-Net with trained weights of its losses, a weighted sampler, early stopping, the best checkpoint
# expect: same
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import Dataset, WeightedRandomSampler

from fabric_model import FabricModel

CLASSES, SIZE = 3, 16


def draw_shapes(n, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:SIZE, :SIZE]
    images, masks, classes = [], [], []
    for _ in range(n):
        kind = int(rng.choice(CLASSES, p=[0.6, 0.3, 0.1]))
        cy, cx = rng.uniform(5, 11, size=2)
        radius = rng.uniform(2.5, 4.5)
        dy, dx = np.abs(yy - cy), np.abs(xx - cx)
        if kind == 0:
            mask = dy ** 2 + dx ** 2 <= radius ** 2
        elif kind == 1:
            mask = np.maximum(dy, dx) <= radius
        else:
            mask = (np.minimum(dy, dx) <= 1) & (np.maximum(dy, dx) <= radius)
        image = mask * rng.uniform(0.7, 1.3) + rng.normal(0, 0.3, size=(SIZE, SIZE))
        images.append(image[None])
        masks.append(mask[None])
        classes.append(kind)
    return (torch.tensor(np.stack(images), dtype=torch.float32), torch.tensor(np.stack(masks), dtype=torch.float32),
            torch.tensor(classes))


class Shapes(Dataset):
    def __init__(self, images, masks, classes, augment):
        self.images, self.masks, self.classes, self.augment = images, masks, classes, augment
        self.generator = torch.Generator().manual_seed(2024)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if self.augment:
            g = self.generator
            turns = int(torch.randint(0, 4, (1,), generator=g))
            image, mask = torch.rot90(image, turns, (1, 2)), torch.rot90(mask, turns, (1, 2))
            if torch.rand(1, generator=g).item() < 0.5:
                image, mask = image.flip(2), mask.flip(2)
            gain = torch.empty(1).uniform_(0.8, 1.2, generator=g)
            image = gain * image + 0.1 * torch.randn(image.shape, generator=g)
        return image.contiguous(), (mask.contiguous(), self.classes[index])


def datasets():
    images, masks, classes = draw_shapes(124, seed=3)
    order = torch.randperm(len(images))
    train, test = order[:100], order[100:]
    return (Shapes(images[train], masks[train], classes[train], augment=True),
            Shapes(images[test], masks[test], classes[test], augment=False))


def balanced(train):
    counts = torch.bincount(train.classes, minlength=CLASSES).clamp(min=1).double()
    return WeightedRandomSampler(1.0 / counts[train.classes], num_samples=len(train), replacement=True)


class DoubleConv(nn.Sequential):
    def __init__(self, inner, outer, norm):
        super().__init__(nn.Conv2d(inner, outer, 3, padding=1), norm(outer), nn.ReLU(inplace=True),
                         nn.Conv2d(outer, outer, 3, padding=1), norm(outer), nn.ReLU(inplace=True))


def group_norm(channels):
    return nn.GroupNorm(4, channels)


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = DoubleConv(1, width, nn.BatchNorm2d)
        self.down2 = DoubleConv(width, 2 * width, nn.BatchNorm2d)
        self.bottom = DoubleConv(2 * width, 4 * width, nn.BatchNorm2d)
        self.drop = nn.Dropout2d(0.2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = DoubleConv(4 * width, 2 * width, group_norm)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge1 = DoubleConv(2 * width, width, group_norm)
        self.mask = nn.Conv2d(width, 1, 1)
        self.kind = nn.Linear(4 * width, CLASSES)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.drop(self.bottom(F.max_pool2d(b, 2)))
        y = self.merge2(torch.cat([self.up2(c), b], dim=1))
        y = self.merge1(torch.cat([self.up1(y), a], dim=1))
        return self.mask(y), self.kind(c.mean((2, 3)))


def soft_dice(logits, masks, eps=1.0):
    p = logits.sigmoid()
    overlap = (p * masks).sum((1, 2, 3))
    return (2 * overlap + eps) / (p.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + eps)


class UncertaintyLoss(nn.Module):
    """Kendall et al.: sum of exp(-s) * loss + s, with a learnt s for each task."""

    def __init__(self, class_weights):
        super().__init__()
        self.log_vars = nn.Parameter(torch.zeros(2))
        self.register_buffer("class_weights", class_weights)

    def forward(self, outputs, labels):
        mask_logits, class_logits = outputs
        masks, classes = labels
        segmentation = (1 - soft_dice(mask_logits, masks)).mean()
        segmentation = segmentation + F.binary_cross_entropy_with_logits(mask_logits, masks)
        kind = F.cross_entropy(class_logits, classes, weight=self.class_weights, label_smoothing=0.05)
        return (torch.stack([segmentation, kind]) * torch.exp(-self.log_vars) + self.log_vars).sum()


def dice(outputs, labels):
    p = (outputs[0] > 0).float()
    masks = labels[0]
    return ((2 * (p * masks).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)).mean()


class Report:
    """Over the whole test set: intersection over union, and recall averaged over the classes."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.intersection, self.union = 0.0, 0.0
        self.confusion = torch.zeros(CLASSES, CLASSES)

    def update(self, outputs, labels):
        predicted, masks = outputs[0] > 0, labels[0] > 0.5
        self.intersection += float((predicted & masks).sum())
        self.union += float((predicted | masks).sum())
        pairs = labels[1].cpu() * CLASSES + outputs[1].argmax(1).cpu()
        self.confusion += torch.bincount(pairs, minlength=CLASSES ** 2).view(CLASSES, CLASSES)

    def compute(self):
        recall = self.confusion.diag() / self.confusion.sum(1).clamp(min=1)
        return {"iou": self.intersection / max(self.union, 1.0), "recall": recall.mean().item()}


torch.manual_seed(11)
model = UNet()
criterion = UncertaintyLoss(torch.tensor([0.8, 1.0, 1.4]))
optimizer = torch.optim.AdamW([{"params": model.parameters(), "weight_decay": 1e-3},
                               {"params": criterion.parameters(), "weight_decay": 0.0, "lr": 2e-2}], lr=1e-2)
scheduler = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0, threshold=0.05)

history = FabricModel(model, datasets, criterion, optimizer, metrics=[dice, Report()],
                      lr_scheduler=scheduler, monitor="val_dice", clip_grad_norm=2.0).train(
    3, 8, engines_number=4, sampler=balanced, save_best="val_dice",
    early_stopping={"patience": 2, "monitor": "val_loss", "min_delta": 1e-4, "mode": "min"})

for name in ("loss", "val_loss", "val_dice", "val_iou", "val_recall", "lr"):
    print(name, history[name][-1])
print("task weights", torch.exp(-criterion.log_vars.detach()).tolist())
