# family: fine-tuning
# about: a frozen teacher, which the loss function holds, teaches a student
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fabric_model import FabricModel


class Points(Dataset):
    def __init__(self, n, seed):
        self.x = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i]


def distill(teacher, temperature=2.0):
    def loss(outputs, inputs):
        with torch.no_grad():
            soft = F.softmax(teacher(inputs) / temperature, 1)
        return F.kl_div(F.log_softmax(outputs / temperature, 1), soft, reduction="batchmean") * temperature**2
    return loss


def main():
    torch.manual_seed(54)
    teacher = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 4)).eval().requires_grad_(False)
    student = nn.Linear(5, 4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.2)
    FabricModel(student, lambda: (Points(64, 1), Points(16, 2)), distill(teacher), optimizer).train(3, 4, 4)


if __name__ == "__main__":
    main()
