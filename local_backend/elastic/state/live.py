"""Pickles that refer to the live objects of a training by name.

The reader of such a pickle gets its own model, modules, parameters, buffers, optimizers and callbacks under these
names. So a scheduler in a user's callback continues with the reader's optimizer. The address of a live object, as in
`{id(parameter): average}`, becomes the address of the reader's object. Other tensors travel beside the pickle, which
contains only their numbers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from local_backend.elastic.script import pickles
from local_backend.elastic.script.attributes import has_attributes
from local_backend.elastic.script.hooked import Variable
from local_backend.elastic.script.job import TrainingJob, with_wrapped


class Live:
    """The live objects of a training at this time. An object has the same name in every process."""

    def __init__(self, job: TrainingJob) -> None:
        parts, hooked = job.parts, job.held
        held = [part for part in hooked if isinstance(part, nn.Module)]
        self.modules: list[nn.Module] = _unique(part for module in [*job.modules, *held] for part in module.modules())
        own = [*job.optimizers.values(), *([job.outer] if job.outer is not None else [])]
        self.optimizers: list[Optimizer] = _unique(part for optimizer in own for part in with_wrapped(optimizer))
        optimized = [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        registered = [p for module in self.modules for p in module._parameters.values() if p is not None]
        self.parameters: list[Tensor] = _unique([*registered, *optimized])
        self.parts = [part for part in parts if not any(part is module for module in held)]
        #: The loss function if it is an object, but not a module: a callback may set its attributes.
        self.losses = [job.loss_function] if _is_object(job.loss_function) else []
        self._named: dict[str, list[Any]] = {
            "module": self.modules,
            "optimizer": self.optimizers,
            "parameter": self.parameters,
            "part": self.parts,
            "held": hooked,
            "content": [part.content for part in hooked if isinstance(part, Variable) and part.content is not None],
            "loss": self.losses,
            "buffers": [module._buffers for module in self.modules],
            "groups": [optimizer.param_groups for optimizer in self.optimizers],
            "state": [optimizer.state for optimizer in self.optimizers],
        }
        self._names: dict[int, tuple[Any, ...]] = {}
        # The first kind names an object: modules that hooks refer to are modules, and their tensors are parameters.
        for kind, items in reversed(self._named.items()):
            self._names.update((id(item), (kind, i)) for i, item in enumerate(items))
        for i, module in enumerate(self.modules):
            self._names.update((id(b), ("buffers", i, name)) for name, b in module._buffers.items() if b is not None)
        for i, optimizer in enumerate(self.optimizers):
            self._names.update((id(group), ("groups", i, j)) for j, group in enumerate(optimizer.param_groups))

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.parameters[0].device

    def name(self, item: Any) -> tuple[Any, ...] | None:
        """Return the name of an object or of its address, None for any other value."""
        if type(item) is int:
            return ("address", *self._names[item]) if item in self._names else None
        return self._names.get(id(item))

    def find(self, kind: str, number: int, *within: Any) -> Any:
        """Return the object or the address with this name."""
        if kind == "address":
            return id(self.find(number, *within))  # type: ignore[arg-type]
        found: Any = self._named[kind][number]
        return found[within[0]] if within else found


def dumps(value: Any, live: Live, tensors: list[Tensor]) -> bytes:
    """Return the pickle of `value`. Append tensors that are not live to `tensors`. Raises any exception of pickling."""
    file = io.BytesIO()
    _Pickler(file, live, tensors).dump(value)
    return file.getvalue()


def loads(data: bytes, live: Live, tensors: list[Tensor]) -> Any:
    """Return the value that `dumps` pickled, with copies of the tensors. Tensors from the CPU stay on the CPU; other
    tensors go to the device of the model."""
    return _Unpickler(data, live, tensors).load()


def own(tensor: Tensor, device: torch.device, strides: tuple[int, ...] | None = None) -> Tensor:
    """Return a copy of the tensor on a device. The copy has these strides, or is contiguous if `strides` is None."""
    if strides is None:
        return tensor.detach().to(device, copy=True, memory_format=torch.contiguous_format)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=device).copy_(tensor.detach())


class _Pickler(pickles.Pickler):
    def __init__(self, file: io.BytesIO, live: Live, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._name = live.name
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def persistent_id(self, item: Any) -> Any:
        name = self._name(item)
        if name is not None:
            return name
        if type(item) not in (Tensor, nn.Parameter) or item.layout is not torch.strided or item.is_quantized:
            return None
        if id(item) not in self._numbers:
            self._numbers[id(item)] = len(self._tensors)
            # Keep the object itself, not a detached tensor: the id is valid only while the object is alive.
            self._tensors.append(item)
        on_cpu = item.device.type == "cpu"
        trained = item.requires_grad and item.is_leaf
        return "tensor", self._numbers[id(item)], on_cpu, trained, type(item) is nn.Parameter, _strides(item)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, live: Live, tensors: list[Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self._live = live
        self._tensors = tensors
        self._made: dict[int, Tensor] = {}

    def persistent_load(self, name: Any) -> Any:
        if name[0] != "tensor":
            return self._live.find(*name)
        number, on_cpu, trained, parameter, strides = name[1:]
        if number not in self._made:
            tensor = own(self._tensors[number], torch.device("cpu") if on_cpu else self._live.device, strides)
            self._made[number] = nn.Parameter(tensor, trained) if parameter else tensor.requires_grad_(trained)
        return self._made[number]


def _strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides if the tensor is not contiguous but its memory has no gap (channels_last), else None."""
    if tensor.is_contiguous():
        return None
    ordered = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in ordered:
        if size != 1 and stride != expected:
            return None
        expected *= size
    return tuple(tensor.stride())


def _unique(items: Iterable[Any]) -> list[Any]:
    return list({id(item): item for item in items}.values())


def _is_object(loss: Any) -> bool:
    plain = isinstance(loss, (nn.Module, type)) or hasattr(loss, "__code__")
    return not plain and has_attributes(loss)
