"""What the driver sends to its workers: the user's objects and functions, in one pickle so that identities survive."""

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
from torch import nn

from local_backend.elastic.errors import EngineError, RemoteTraceback

#: How deep the search for what cannot be pickled goes.
SEARCH_DEPTH = 8


@dataclass
class Job:
    """One training as the script asked for it. The optimizer is bound to the model's parameters."""

    model: nn.Module
    datasets_function: Callable[[], Any]
    loss_function: Callable[[Any, Any], Any]
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
    #: In asynchronous mode, in a worker: what applies the mean of all members.
    outer: torch.optim.Optimizer | None = None

    @property
    def modules(self) -> list[nn.Module]:
        """All that has parameters and buffers: the model, and the loss where it is a module."""
        return [self.model, *([self.loss_function] if isinstance(self.loss_function, nn.Module) else [])]

    def dumps(self) -> bytes:
        """The job as bytes. Raises EngineError naming the part that cannot be sent."""
        try:
            return cloudpickle.dumps(self.__dict__)
        except Exception as error:
            path, why = next(_culprits(self.__dict__, error), ("the job", str(error)))
            raise EngineError(
                f"FabricModel cannot send {path} to its workers: it cannot be pickled ({why}). "
                "Create it inside datasets_function or in the function that uses it, or leave it out by __getstate__."
            ) from None

    @classmethod
    def loads(cls, data: bytes) -> Job:
        """Inverse of `dumps`, in a worker."""
        job = cls.__new__(cls)
        job.__dict__.update(cloudpickle.loads(data))
        return job

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Afterwards the model is on the device and in the mode (training or evaluation) that it was, with the
        gradients that it had: what a script finds after a training in its own process as after any other.
        """
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
        """Make the main script's classes of models and callbacks attributes of `__main__`, where they are not.

        They came here by value; `torch.save(self.model, ...)` in a callback looks them up by name.
        """
        main = sys.modules["__main__"]
        owners = [*self.callbacks, self.loss_function, *(part for module in self.modules for part in module.modules())]
        for owner in owners:
            for kind in type(owner).__mro__:
                if kind.__module__ == "__main__" and "." not in kind.__qualname__ and not hasattr(main, kind.__name__):
                    setattr(main, kind.__name__, kind)

    def state(self) -> bytes:
        """What training has changed, for `load_state` in another process. Tensors come on the CPU."""
        return cloudpickle.dumps(
            {
                "modules": [to_cpu(_tensors(module)) for module in self.modules],
                "optimizer": to_cpu(self.optimizer.state_dict()),
            }
        )

    def load_state(self, data: bytes) -> None:
        """Take over the state into the user's own objects."""
        state = cloudpickle.loads(data)
        with torch.no_grad():
            for module, tensors in zip(self.modules, state["modules"], strict=True):
                for name, tensor in _tensors(module).items():
                    tensor.copy_(tensors[name])
        self.optimizer.load_state_dict(state["optimizer"])

    def move(self, device: torch.device) -> None:
        """Move model, loss and optimizer state to a device, in place: the optimizer stays bound."""
        for module in self.modules:
            module.to(device)
        if self.optimizer.state:
            self.optimizer.load_state_dict(self.optimizer.state_dict())


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer, also those that a state_dict leaves out, by name."""
    return {name: t.detach() for name, t in [*module.named_parameters(), *module.named_buffers()]}


def to_cpu(value: Any) -> Any:
    """Tensors in nested dicts, lists and tuples, on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return type(value)((key, to_cpu(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(to_cpu(item) for item in value)
    return value


def _culprits(parts: dict[str, Any], error: Exception) -> Iterator[tuple[str, str]]:
    """(path, reason) of the innermost object that makes pickling fail."""
    for name, value in parts.items():
        reason = _failure(value)
        if reason is not None:
            yield _innermost(name, value, reason, SEARCH_DEPTH)
    yield "its arguments", str(error)


def _failure(value: Any) -> str | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return str(error).partition("\n")[0]
    return None


def _innermost(path: str, value: Any, reason: str, depth: int) -> tuple[str, str]:
    if depth:
        for name, item in _inside(value):
            why = _failure(item)
            if why is not None:
                return _innermost(f"{path}{name}", item, why, depth - 1)
    return f"{path} (a {type(value).__name__})", reason


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        yield from ((f".{name}", child) for name, child in value.named_children())
    closure = getattr(value, "__closure__", None)
    if closure:
        names = value.__code__.co_freevars
        yield from ((f" → {name}", cell.cell_contents) for name, cell in zip(names, closure, strict=True))
    if callable(value) and hasattr(value, "__globals__"):
        used = value.__code__.co_names
        yield from ((f" → {name}", value.__globals__[name]) for name in used if name in value.__globals__)
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif not callable(value) or isinstance(value, nn.Module):
        yield from ((f".{name}", item) for name, item in getattr(value, "__dict__", {}).items())


def describe_exception(error: BaseException) -> tuple[str, str, bytes]:
    """(one line, traceback, pickle) of an exception, for `revive`; the pickle is empty where there can be none."""
    summary = traceback.format_exception_only(error)[-1].strip()
    text = "".join(traceback.format_exception(error))
    try:
        return summary, text, cloudpickle.dumps(error.with_traceback(None))
    except Exception:
        return summary, text, b""


def revive(summary: str, text: str, pickled: bytes) -> BaseException:
    """The exception of a worker, to be raised in the driver; its cause shows the worker's traceback.

    One that cannot be pickled is replaced by an exception that prints the same last line.
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
