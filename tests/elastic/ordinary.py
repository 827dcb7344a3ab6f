"""Small versions of common trainings. Each function builds all that `train` and the comparison need."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from callbacks import Callback
from fabric_model import FabricModel
from hashing import feed
from pace import Paced
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

SAMPLES, FEATURES, CLASSES = 22, 6, 3
EPOCHS = 40
#: Seconds per batch of 4 samples, and the number of batches before a training slows down for the test.
PACE, BATCHES = 0.05, 120


@dataclass
class Case:
    """One training; `extras` are further arguments of FabricModel."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Any = F.cross_entropy
    #: None for `plain_data`.
    datasets: Callable[[], Any] | None = None
    extras: dict[str, Any] = field(default_factory=dict)


class Rows:
    """A driver's logger that keeps all values except the number of workers."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def log_train_metrics(self, metrics: Any, iteration: Any, epoch: Any, workers: Any) -> None:
        self.rows.append(("train", metrics, iteration, epoch))

    def log_test_metrics(self, metrics: Any, iteration: Any, epoch: Any) -> None:
        self.rows.append(("test", metrics, iteration, epoch))


def train(build: Callable[[], Case], hurry: str) -> tuple[str, list[Any]]:
    """Return a hash over all results of a training, and the rows of the driver's logger."""
    torch.manual_seed(7)
    case = build()
    rows = Rows()
    fabric = FabricModel(
        case.model, case.datasets or plain_data, case.loss, case.optimizer, driver_logger=rows,
        fn_batch_collate=Paced(hurry, PACE, BATCHES), **case.extras,
    )
    fabric.train(EPOCHS, 4, 3, validation_freq=10, checkpoint_freq=0)
    return fingerprint(case), rows.rows


def fingerprint(case: Case) -> str:
    """Return a hash over parameters, frozen flags, buffers, the optimizer, and the attributes of callbacks."""
    digest = hashlib.sha256()
    modules = [case.model, *([case.loss] if isinstance(case.loss, nn.Module) else [])]
    for module in modules:
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            digest.update(f"{name} {tensor.requires_grad}".encode())
            feed(digest, tensor)
    feed(digest, case.optimizer.state_dict())
    for callback in case.extras.get("user_callback", []):
        own = {k: v for k, v in vars(callback).items() if k not in ("params", "model")}
        feed(digest, own)
    return digest.hexdigest()


def plain_data() -> Any:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, FEATURES, generator=generator), torch.arange(SAMPLES) % CLASSES
    return TensorDataset(x, y), TensorDataset(x[:9], y[:9])


def network(dtype: torch.dtype | None = None) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 8, dtype=dtype), nn.BatchNorm1d(8, dtype=dtype), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(8, CLASSES, dtype=dtype),
    )


def with_optimizer(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Case:
    model = network()
    return Case(model, make(model.parameters(), **options))


# --- precision


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)


def autocast_in_forward() -> Case:
    model = Autocast()
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def step_with_autocast(model: Any, data: Any, eva: Any, train_loader: Any, fn_args: Any) -> Any:
    inputs, labels = data
    model.get_optimizer().zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(inputs)
        loss = model.get_loss_function()(outputs, labels)
    loss.backward()
    return eva(outputs, labels), loss


def autocast_in_step() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)
    case.extras["fn_step_train"] = step_with_autocast
    return case


def bfloat16_model() -> Case:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES)).bfloat16()

    def data() -> Any:
        train_set, test_set = plain_data()
        return tuple(TensorDataset(s.tensors[0].bfloat16(), s.tensors[1]) for s in (train_set, test_set))

    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1), datasets=data)


def float64_model() -> Case:
    model = network(torch.float64)

    def data() -> Any:
        train_set, test_set = plain_data()
        return tuple(TensorDataset(s.tensors[0].double(), s.tensors[1]) for s in (train_set, test_set))

    return Case(model, torch.optim.Adam(model.parameters(), lr=0.01), datasets=data)


# --- gradients


def step_with_clipping(model: Any, data: Any, eva: Any, train_loader: Any, fn_args: Any) -> Any:
    inputs, labels = data
    model.get_optimizer().zero_grad()
    outputs = model(inputs)
    loss = model.get_loss_function()(outputs, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    return eva(outputs, labels), loss


def clipping_in_step() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)
    case.extras["fn_step_train"] = step_with_clipping
    return case


def clipping_by_optimizer_hook() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=1.0)

    def clip(optimizer: Any, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.001)

    case.optimizer.register_step_pre_hook(clip)
    return case


def clamping_by_parameter_hook() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=1.0)
    for parameter in case.model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4))
    return case


def clamping_after_accumulation() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=1.0)

    def clamp(parameter: Any) -> None:
        parameter.grad.clamp_(-1e-4, 1e-4)

    for parameter in case.model.parameters():
        parameter.register_post_accumulate_grad_hook(clamp)
    return case


def sparse_gradients() -> Case:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(4 * FEATURES, CLASSES))

    def data() -> Any:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randint(0, 10, (SAMPLES, FEATURES), generator=generator), torch.arange(SAMPLES) % CLASSES
        return TensorDataset(x, y), TensorDataset(x[:9], y[:9])

    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1), datasets=data)


# --- which parameters are trained


class Unfreeze(Callback):
    def on_epoch_begin(self, epoch: int) -> None:
        if epoch == 5:
            self.model[0].requires_grad_(True)


def unfrozen_by_callback() -> Case:
    case = with_optimizer(torch.optim.Adam, lr=0.01)
    case.model[0].requires_grad_(False)
    case.extras["user_callback"] = [Unfreeze()]
    return case


class AddGroup(Callback):
    def on_epoch_begin(self, epoch: int) -> None:
        if epoch == 5:
            self.params["optimizer"].add_param_group({"params": list(self.model[0].parameters()), "lr": 0.5})


def group_added_by_callback() -> Case:
    model = network()
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)
    return Case(model, optimizer, extras={"user_callback": [AddGroup()]})


def groups_with_rates_of_their_own() -> Case:
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[4].parameters(), "weight_decay": 0.1}]
    return Case(model, torch.optim.SGD(groups, lr=0.2, momentum=0.5))


def optimizer_of_the_last_layer() -> Case:
    model = network()
    return Case(model, torch.optim.SGD(model[4].parameters(), lr=0.1))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.rarely = (nn.Linear(FEATURES, CLASSES) for _ in range(3))

    def forward(self, x: Any) -> Any:
        out = self.used(x)
        return out + self.rarely(x) if self.training and torch.rand(()) < 0.3 else out


def unused_parameters() -> Case:
    model = Unused()
    return Case(model, torch.optim.AdamW(model.parameters(), lr=0.01))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


def tied_weights() -> Case:
    model = Tied()
    return Case(model, torch.optim.Adam(model.parameters(), lr=0.01))


# --- data


class Named(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self._x = plain_data()[0].tensors[0][:size]

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, i: int) -> Any:
        return {"left": self._x[i, :2], "right": self._x[i, 2:], "name": str(i)}, i % CLASSES


class OfNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, CLASSES), nn.Linear(FEATURES - 2, CLASSES)

    def forward(self, inputs: Any) -> Any:
        assert isinstance(inputs["name"], list)
        return self.left(inputs["left"]) + self.right(inputs["right"])


def inputs_in_a_dict() -> Case:
    model = OfNamed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Case(model, optimizer, datasets=lambda: (Named(SAMPLES), Named(9)))


class OfPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(2, FEATURES - 2, CLASSES)

    def forward(self, inputs: Any) -> Any:
        left, right = inputs
        return self.bilinear(left, right)


def inputs_in_a_tuple() -> Case:
    model = OfPair()

    def data() -> Any:
        x = plain_data()[0].tensors[0]
        pairs = [((row[:2], row[2:]), i % CLASSES) for i, row in enumerate(x)]
        return pairs, pairs[:9]

    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1), datasets=data)


# --- modules


class ScaledLoss(nn.Module):
    fabric_buffers: ClassVar[dict[str, str]] = {"average": "mean"}

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("average", torch.zeros(()))

    def forward(self, outputs: Any, labels: Any) -> Any:
        loss = F.cross_entropy(outputs * self.scale, labels)
        if self.training:
            self.average.mul_(0.9).add_(loss.detach(), alpha=0.1)
        return loss


def loss_with_parameters_and_buffers() -> Case:
    model, loss = network(), ScaledLoss()
    return Case(model, torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1), loss)


class FineTuned(nn.Module):
    """A model whose BatchNorm stays in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Any) -> Any:
        return self.inner(x)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.inner[1].eval()
        return self


def batch_norm_in_evaluation_mode() -> Case:
    model = FineTuned()
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1))


class FreezeBatchNorm(Callback):
    def __init__(self) -> None:
        self.means: list[Any] = []

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch >= 3:
            self.model[1].eval()
        self.means.append(self.model[1].running_mean.tolist())


def batch_norm_frozen_by_callback() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)
    case.extras["user_callback"] = [FreezeBatchNorm()]
    return case


def compiled(backend: str) -> Case:
    model = network()
    return Case(torch.compile(model, backend=backend), torch.optim.SGD(model.parameters(), lr=0.1))


def compiled_eager() -> Case:
    return compiled("eager")


def compiled_aot_eager() -> Case:
    return compiled("aot_eager")


def compiled_in_place() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)
    case.model.compile(backend="eager")
    return case


def compiled_part() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)
    case.model[0] = torch.compile(case.model[0], backend="eager")
    return case


def weight_norm() -> Case:
    model = network()
    nn.utils.parametrizations.weight_norm(model[0])
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1))


def spectral_norm() -> Case:
    model = network()
    nn.utils.parametrizations.spectral_norm(model[0])
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1))


def older_weight_norm() -> Case:
    model = network()
    nn.utils.weight_norm(model[0])
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.3)), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.last(torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False))


def activation_checkpoints() -> Case:
    model = Checkpointed()
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1))


class Reentrant(nn.Module):
    """A model that uses one layer in several segments, so a backward pass adds to its gradient more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Any) -> Any:
        x = x.requires_grad_()
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(lambda x: torch.tanh(self.shared(x)), x, use_reentrant=True)
        return self.last(x)


def reentrant_activation_checkpoints() -> Case:
    model = Reentrant()
    return Case(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def forward_hooks() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)
    case.model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    return case


# --- optimizers


class Signs(torch.optim.Optimizer):
    """Steps by the sign of the gradient, with decreasing size."""

    def __init__(self, parameters: Any, lr: float, decay: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.decay = decay
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                    average.lerp_(parameter.grad, 0.5)
                    parameter.add_(average.sign(), alpha=-group["lr"] * self.decay**self.steps)


def adam() -> Case:
    return with_optimizer(torch.optim.Adam, lr=0.01)


def adamw_amsgrad() -> Case:
    return with_optimizer(torch.optim.AdamW, lr=0.01, amsgrad=True)


def adagrad() -> Case:
    return with_optimizer(torch.optim.Adagrad, lr=0.05)


def rmsprop() -> Case:
    return with_optimizer(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True)


def sgd_nesterov() -> Case:
    return with_optimizer(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)


def fused_adam() -> Case:
    return with_optimizer(torch.optim.Adam, lr=0.01, fused=True)


def own_optimizer() -> Case:
    return with_optimizer(Signs, lr=0.01, decay=0.99)


# --- callbacks


class Warmup(Callback):
    """Creates its scheduler when training begins."""

    def on_train_begin(self) -> None:
        optimizer = self.params["optimizer"]
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=EPOCHS + 1)

    def on_epoch_end(self, epoch: int, save_model: bool = False) -> None:
        self.scheduler.step()


def schedule_of_a_callback() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
    case.extras["user_callback"] = [Warmup()]
    return case


class Stepping(Callback):
    """Steps a scheduler that the script has created."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def on_epoch_end(self, epoch: int, save_model: bool = False) -> None:
        self.scheduler.step()


def schedule_of_the_script() -> Case:
    case = with_optimizer(torch.optim.Adam, lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(case.optimizer, lambda epoch: 0.9**epoch)
    case.extras["user_callback"] = [Stepping(scheduler)]
    return case


class Average(Callback):
    def __init__(self, model: nn.Module) -> None:
        self.average = copy.deepcopy(model).requires_grad_(False)

    def on_epoch_end(self, epoch: int, save_model: bool = False) -> None:
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(now, 0.1)


def moving_average() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)
    case.extras["user_callback"] = [Average(case.model)]
    return case


def averaged_model() -> Case:
    case = with_optimizer(torch.optim.SGD, lr=0.1)

    class Swa(Callback):
        def __init__(self, model: nn.Module) -> None:
            self.averaged = torch.optim.swa_utils.AveragedModel(model)

        def on_epoch_end(self, epoch: int, save_model: bool = False) -> None:
            self.averaged.update_parameters(self.model)

    case.extras["user_callback"] = [Swa(case.model)]
    return case


CASES = [
    autocast_in_forward, autocast_in_step, bfloat16_model, float64_model,
    clipping_in_step, clipping_by_optimizer_hook, clamping_by_parameter_hook, clamping_after_accumulation,
    sparse_gradients,
    unfrozen_by_callback, group_added_by_callback, groups_with_rates_of_their_own, optimizer_of_the_last_layer,
    unused_parameters, tied_weights, inputs_in_a_dict, inputs_in_a_tuple,
    loss_with_parameters_and_buffers, batch_norm_in_evaluation_mode, batch_norm_frozen_by_callback,
    compiled_eager, compiled_aot_eager, compiled_in_place, compiled_part, weight_norm, spectral_norm,
    older_weight_norm, activation_checkpoints, reentrant_activation_checkpoints,
    forward_hooks,
    adam, adamw_amsgrad, adagrad, rmsprop, sgd_nesterov, fused_adam, own_optimizer,
    schedule_of_a_callback, schedule_of_the_script, moving_average, averaged_model,
]
