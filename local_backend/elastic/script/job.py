"""The training that the driver sends to its workers: the user's objects and functions, in one pickle so that shared
objects stay shared."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from local_backend.elastic.errors import EngineError, RemoteTraceback
from local_backend.elastic.script import hooked, main_module, patches, pickles
from local_backend.elastic.script.module_values import ModuleValues
from local_backend.elastic.script.patches import Patch
from local_backend.elastic.script.recipe import Recipe, flat


@dataclass(eq=False)
class Carried:
    """Values that are equal on all members. `Live` names this object, so the state contains its attributes."""

    #: Name → values, one item per epoch. This is the history that train() returns.
    history: dict[str, list[float]] = field(default_factory=dict)
    #: The values of each epoch as the hub has sent them: only values that were computed in that epoch.
    told: list[dict[str, float]] = field(default_factory=list)
    #: Name of the optimizer → learning rate of its last step.
    rates: dict[str, float] = field(default_factory=dict)
    #: Moving averages of the parameters, in the order of the parameters; empty if there are none.
    average: list[Tensor] = field(default_factory=list)
    #: Loss scale of fp16, and number of steps since the scale last changed.
    scale: float = 65536.0
    steady: int = 0
    #: Number of steps that were skipped because their gradients were not finite.
    skipped: int = 0
    #: Loss of each phase of the current step, for callbacks.
    losses: dict[str, float] = field(default_factory=dict)
    #: The epoch that has begun last and the order of its samples, if a sampler gives it.
    order: tuple[int, Tensor] | None = None


@dataclass
class TrainingJob:
    """One training as the script requested it. The optimizer is bound to the model's parameters."""

    model: nn.Module
    datasets_function: Callable[[], Any]
    #: None for a model whose outputs contain the loss; a dict by phase where there are several optimizers.
    loss_function: Any
    optimizer: torch.optim.Optimizer
    epochs: int
    batch: int
    metrics: list[Callable[[Any, Any], Any]] = field(default_factory=list)
    worker_logger: Any = None
    callbacks: list[Any] = field(default_factory=list)
    save_to_onnx: bool = False
    fn_batch_collate: Callable[[list[Any]], Any] | None = None
    fn_step_train: Callable[..., Any] | None = None
    fn_test: Callable[..., Any] | None = None
    fn_args: Any = None
    loader_threads: int = 0
    #: Name → optimizer of each phase of a step, in order; empty for one optimizer.
    phases: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    recipe: Recipe = field(default_factory=Recipe)
    carried: Carried = field(default_factory=Carried)
    #: See `hooked.py`. Each process finds these parts anew: all that the script has made, and those that
    #: datasets_function has made in addition, which only workers have.
    hooked: list[Any] | None = None
    late: list[Any] = field(default_factory=list)
    #: Values in the user's modules, as they were in the driver.
    module_values: ModuleValues = field(default_factory=ModuleValues)
    #: Replacements that the script has put into installed modules; set in workers.
    patches: list[Patch] = field(default_factory=list)
    #: The outer optimizer, which applies the mean of all members: in workers, in asynchronous mode.
    outer: torch.optim.Optimizer | None = None

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that have parameters and buffers: the model, and the loss where it is a module."""
        return [self.model, *([self.loss_function] if isinstance(self.loss_function, nn.Module) else [])]

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """All optimizers by the names of their phases. The name of a single optimizer is ""."""
        return self.phases or {"": self.optimizer}

    @property
    def parts(self) -> list[Any]:
        """Objects besides model and optimizers whose attributes are part of the state: callbacks, objects that the
        script has registered, schedulers, parts that optimizers and hooks keep, and values that the options keep."""
        own = self._own
        return [*own, *self._kept_by_hooks(own), self.carried, *self.late]

    @property
    def _own(self) -> list[Any]:
        """The parts that the script has given to the training."""
        registered = [self.recipe.state[name] for name in sorted(self.recipe.state)]
        return [*self.callbacks, *registered, *flat(self.recipe.lr_scheduler.values())]

    @property
    def held(self) -> list[Any]:
        """The parts that hooks keep, as far as this process has found them."""
        return [*(self.hooked or []), *self.late]

    def find_parts(self) -> None:
        """Find the parts that hooks keep. Call this before any hook runs, so that all processes find the same parts."""
        assert self.parts

    def find_late_parts(self) -> None:
        """Find the parts that exist only since datasets_function has run. Call this after `find_parts`."""
        known = {hooked.key_of(part) for part in self.hooked or []}
        self.late = [part for part in self._find(self._own) if hooked.key_of(part) not in known]

    def _kept_by_hooks(self, own: list[Any]) -> list[Any]:
        """Return the parts that hooks of optimizers and callbacks keep, as the first call found them."""
        if self.hooked is None:
            self.hooked = self._find(own)
        return self.hooked

    def _find(self, own: list[Any]) -> list[Any]:
        modules = [part for module in self.modules for part in module.modules()]
        known = [*own, *modules, self.loss_function, self.recipe, self.carried, self]
        optimizers = [part for optimizer in self.optimizers.values() for part in with_wrapped(optimizer)]
        return hooked.find(optimizers, self.callbacks, known, self.recipe.local_state)

    @property
    def sources(self) -> dict[str, Any]:
        """Name in messages → object that may draw random numbers during a training, without the data sets."""
        return {
            "the model": self.model, "loss_function": self.loss_function, "fn_step_train": self.fn_step_train,
            "fn_test": self.fn_test, "fn_args": self.fn_args, "metrics": self.metrics,
            "the optimizer": list(self.optimizers.values()), "user_callback": self.callbacks,
            "state": self.recipe.state,
        }

    @property
    def beginnings(self) -> dict[str, Any]:
        """The `sources`, and the functions that make data sets and batches."""
        own = {"datasets_function": self.datasets_function, "fn_batch_collate": self.fn_batch_collate}
        return {**own, **self.sources}

    def dumps(self) -> bytes:
        """Return the job as bytes. Raises EngineError with the name of the part that cannot be sent."""
        main_module.check_operators()
        try:
            found = {"module_values": ModuleValues.gather(self._shared()), "patches": patches.gather()}
            # The names of the script come first, because modules may read them while they are imported.
            sent = {"hooked": None, "late": [], "trained": self._trained()}
            parts = {"main": main_module.gather(), **self.__dict__, **sent, **found}
            return pickles.dumps(parts, main_module.GlobalNames(), self._addressed())
        except EngineError:
            raise
        except Exception as error:
            path, why = pickles.culprit(self.__dict__, error)
            raise EngineError(
                f"FabricModel cannot send {path} to its workers: pickling it failed ({why}). Create it inside "
                "datasets_function or in the function that uses it, or exclude it with __getstate__."
            ) from None

    @classmethod
    def loads(cls, data: bytes) -> TrainingJob:
        """Return the job that `dumps` was given. Used in a worker: it also sets the script's patches, and the driver's
        values in the user's modules. Raises EngineError."""
        job = cls.__new__(cls)
        parts = pickles.loads(data)
        trained = parts.pop("trained")
        del parts["main"]
        job.__dict__.update(parts)
        if job._trained() != trained:
            raise EngineError(
                f"the copy of the model in a worker has other parameters than the optimizer, because {job._remade()} "
                "makes new parameters when it is pickled. Keep the parameters in modules of torch, or train in one "
                "process without FabricModel"
            )
        for patch in job.patches:
            patch.apply()
        job.module_values.apply()
        job.module_values.import_all()
        return job

    def _trained(self) -> list[int | None]:
        """Return the number of each parameter of the optimizers among those of model and loss; None for others."""
        parameters = (parameter for module in self.modules for parameter in module.parameters())
        numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        return [numbers.get(id(parameter)) for group in groups for parameter in group["params"]]

    def _remade(self) -> str:
        """Return the name of the first module of a class that says itself how it is pickled."""
        modules = (part for module in self.modules for part in module.modules())
        own = (type(part).__name__ for part in modules if type(part).__reduce__ is not object.__reduce__)
        return next(own, type(self.model).__name__)

    def _addressed(self) -> list[Any]:
        """Return the objects whose addresses the script may keep, as in `{id(parameter): factor}`."""
        buffers = [buffer for module in self.modules for buffer in module.buffers()]
        groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        return [*self._shared(), *buffers, *(tensor for group in groups for tensor in group["params"])]

    def _shared(self) -> list[Any]:
        """Return the objects of the job that a module of the user may hold, too."""
        modules = [part for module in self.modules for part in module.modules()]
        parameters = [parameter for module in self.modules for parameter in module.parameters()]
        return [*modules, *parameters, *self.optimizers.values(), *self.parts]

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Restore the device, the mode (training or evaluation) and the gradients of the model after the `with` block.
        So a script finds the same after a training in its own process as after any other training."""
        parts = [(part, part.training) for module in self.modules for part in module.modules()]
        parameters = [(parameter, parameter.grad) for module in self.modules for parameter in module.parameters()]
        home = parameters[0][0].device
        try:
            yield
        finally:
            self.move(home)
            for part, mode in parts:
                part.training = mode
            for parameter, gradient in parameters:
                parameter.grad = gradient

    def publish_main(self) -> None:
        """Make the main script's classes of models and callbacks attributes of `__main__`, where they are missing.

        Workers get these classes by value, but `torch.save(self.model, ...)` in a callback looks them up by name.
        """
        main = sys.modules["__main__"]
        owners = [*self.callbacks, self.loss_function, *(part for module in self.modules for part in module.modules())]
        for owner in owners:
            for kind in type(owner).__mro__:
                if kind.__module__ == "__main__" and "." not in kind.__qualname__ and not hasattr(main, kind.__name__):
                    setattr(main, kind.__name__, kind)

    def move(self, device: torch.device) -> None:
        """Move model, loss and optimizer state to a device, in place, so that the optimizer stays bound to the
        parameters."""
        there = all(parameter.device == device for module in self.modules for parameter in module.parameters())
        for module in self.modules:
            module.to(device)
        # Load only if needed: loading also converts the optimizer's state to the types of the parameters.
        if self.optimizer.state and not there:
            self.optimizer.load_state_dict(self.optimizer.state_dict())


def with_wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizer and the optimizers in its attributes, also in lists, tuples and dicts, at any depth."""
    found: dict[int, Any] = {}
    _add_wrapped(optimizer, found)
    return [one for one in found.values() if isinstance(one, torch.optim.Optimizer)]


def _add_wrapped(value: Any, found: dict[int, Any]) -> None:
    if isinstance(value, torch.optim.Optimizer):
        # The state and the groups hold tensors and numbers only, and are long.
        inside = [item for name, item in vars(value).items() if name not in ("state", "param_groups")]
    elif type(value) in (list, tuple, dict):
        inside = list(value.values() if type(value) is dict else value)
    else:
        return
    if id(value) not in found:
        found[id(value)] = value
        for item in inside:
            _add_wrapped(item, found)


def describe_exception(error: BaseException) -> tuple[str, str, bytes]:
    """Return (one line, traceback, pickle) of an exception, for `revive`; the pickle is empty where pickling fails."""
    summary = traceback.format_exception_only(error)[-1].strip()
    text = "".join(traceback.format_exception(error))
    try:
        return summary, text, cloudpickle.dumps(error)  # without its traceback, which stays in this process
    except Exception:
        return summary, text, b""


def revive(summary: str, text: str, pickled: bytes) -> BaseException:
    """Return the exception of a worker, to be raised in the driver; its cause shows the worker's traceback.

    An exception that cannot be pickled or unpickled is replaced by one that prints the same last line.
    """
    error = _unpickled(pickled)
    if not isinstance(error, Exception):
        name, _, message = summary.partition(": ")
        module, _, short = name.rpartition(".")
        error = type(short or "Error", (RuntimeError,), {"__module__": module or "builtins"})(message)
    error.__cause__ = RemoteTraceback(text)
    return error


def _unpickled(pickled: bytes) -> Any:
    if not pickled:
        return None
    try:
        return cloudpickle.loads(pickled)
    except (pickle.UnpicklingError, TypeError, AttributeError, ImportError, EOFError, IndexError, ValueError):
        return None
