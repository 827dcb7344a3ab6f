"""A model with all kinds of parameters and buffers, its trainings, and a wire between threads."""

import copy
import queue

import torch
from hypothesis import strategies as st
from support import PATIENCE
from torch import nn

from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.transfer import Sending, receive_state

CPU = torch.device("cpu")


class Zoo(nn.Module):
    """A model with all kinds of parameters and buffers."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.into = nn.Linear(4, 5)
        self.out = nn.Linear(4, 5)
        self.out.weight = self.into.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.bfloat = nn.Parameter(torch.randn(3).to(torch.bfloat16))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.register_buffer("nothing", None)
        self.register_buffer("precise", torch.randn(2, dtype=torch.float64))
        self.register_buffer("table", torch.randint(0, 9, (40,)))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.register_buffer("flag", torch.tensor(False))
        self.norm.running = self.norm.running_mean  # the same tensor, registered only once
        self.rate = 0.25

    def forward(self, x):
        x = self.norm(self.convolution(x)).mean((2, 3)) * self.scale + self.bfloat.float().sum()
        self.hidden = self.hidden + 1
        return self.dropout(self.into(x) + self.out(x) @ self.frozen.weight) * self.rate


class Nested(torch.optim.Optimizer):
    """SGD with state of every shape."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01, "betas": (0.9, 0.99), "scale": torch.tensor(0.5)})
        self.calls = 0
        self.slow = [torch.zeros(()), {"deep": torch.zeros((), dtype=torch.int64)}]

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        self.slow[0] += self.calls
        self.state["shared"] = {"count": self.state.get("shared", {"count": 0})["count"] + 1, "none": None}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                own = self.state[parameter]
                own.setdefault("past", []).append((parameter.grad.double(), {"n": len(own["past"])}))
                del own["past"][:-2]
                own["plain"] = (len(own["past"]), "text", 0.5)
                mean = sum(past for past, _ in own["past"]) / len(own["past"])
                parameter.sub_((group["lr"] * group["scale"] * mean / self.slow[0]).to(parameter.dtype))


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer and halves its learning rate."""

    def __init__(self, inner):
        super().__init__([torch.zeros(1)], inner.defaults)
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure=None):
        self.inner.step()
        for group in self.param_groups:
            group["lr"] *= 0.5


class Several(torch.optim.Optimizer):
    """Steps optimizers in a list, each of which has parameters of its own."""

    def __init__(self, *optimizers):
        super().__init__([torch.zeros(1)], {})
        self.optimizers = list(optimizers)
        self.param_groups = [group for one in optimizers for group in one.param_groups]

    def step(self, closure=None):
        for one in self.optimizers:
            one.step()


def several(model):
    parameters = list(model.parameters())
    return Several(torch.optim.Adam(parameters[:2]), torch.optim.SGD(parameters[2:], 0.1, momentum=0.9))


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
    "adamw-groups": lambda model: torch.optim.AdamW(
        [{"params": model.into.parameters(), "lr": 0.1}, {"params": [model.scale], "weight_decay": 0.3}], foreach=True
    ),
    "tensor-rate": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), capturable=False),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), 0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), centered=True, momentum=0.5),
    "rprop": lambda model: torch.optim.Rprop(model.parameters()),
    "nested": lambda model: Nested(model.parameters()),
    "several": several,
    "wrapped": lambda model: Wrapper(torch.optim.Adam(model.parameters())),
}


class Course:
    """A callback with a schedule, an average of the model, and references to everything."""

    def on_train_begin(self, job):
        self.params = {"optimizer": job.optimizer, "epochs": 3}
        self.model = job.model
        inner = getattr(job.optimizer, "inner", job.optimizer)
        self.schedule = torch.optim.lr_scheduler.SequentialLR(
            inner,
            [
                torch.optim.lr_scheduler.LinearLR(inner, 0.5, total_iters=2),
                torch.optim.lr_scheduler.LambdaLR(inner, lambda epoch: 0.9**epoch),
            ],
            [2],
        )
        self.average = copy.deepcopy(job.model)
        self.best = (float("inf"), {})
        self.layers = [job.model.norm, job.model.scale, job.model.norm.running_mean]

    def step(self):
        self.schedule.step()
        with torch.no_grad():
            for mine, its in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(its, 0.1)
        self.best = (self.model.scale.item(), {k: v.clone() for k, v in self.model.state_dict().items()})
        self.model.dropout.p *= 0.9


def make(optimizer="amsgrad", begun=True, callbacks=None, loss=nn.functional.mse_loss):
    torch.manual_seed(0)
    model = Zoo()
    job = TrainingJob(model, tuple, loss, OPTIMIZERS[optimizer](model), 3, 4)
    job.callbacks = [Course()] if callbacks is None else callbacks
    job.find_parts()
    if begun and callbacks is None:
        job.callbacks[0].on_train_begin(job)
    return job


def train(job, steps, first=0):
    for step in range(first, first + steps):
        torch.manual_seed(step)
        job.optimizer.zero_grad()
        inputs = torch.randn(3, 2, 6, 6).to(memory_format=torch.channels_last)
        job.loss_function(job.model(inputs), torch.zeros(3, 5)).backward()
        job.optimizer.step()
        for callback in job.callbacks:
            callback.step()


class Wire:
    """One member's end of a group between threads. It records the sizes of messages."""

    def __init__(self, rank, queues):
        self.rank, self.queues, self.sizes = rank, queues, []

    def send(self, tensor, to):
        assert tensor.dim() == 1 and tensor.is_contiguous()
        self.sizes.append(tensor.nbytes)
        self.queues[self.rank, to].put(tensor.clone(), timeout=PATIENCE)

    def receive(self, tensor, source):
        sent = self.queues[source, self.rank].get(timeout=PATIENCE)
        assert (sent.shape, sent.dtype) == (tensor.shape, tensor.dtype)
        tensor.copy_(sent)


def wires(size):
    queues = {(i, j): queue.Queue() for i in range(size) for j in range(size)}
    return [Wire(rank, queues) for rank in range(size)]


def over_the_wire(state, _):
    here, there = wires(2)
    sending = Sending(here, [1], state)
    received = receive_state(there, 0, CPU)
    sending.join(PATIENCE)
    return received


def same(first, second):
    """Return whether values, types and layout are the same."""

    def kind(tensor):
        return tensor.dtype, tensor.shape, tensor.stride() if tensor.numel() else None, tensor.requires_grad

    return len(first) == len(second) and all(
        kind(a) == kind(b) and torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


TENSORS = st.builds(
    lambda shape, dtype, seed: (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(
        [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool,
         torch.complex64]
    ),
    st.integers(0, 99),
)
