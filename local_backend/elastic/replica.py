"""Everything of a training that every member holds alike: what a worker that joins copies, and what snapshots keep.

That is all parameters and buffers, the optimizers with their hyper-parameters, which parameters are frozen, the mode of
each module and the plain values among its attributes (the rate of a Dropout, for example), and the attributes of the
other parts (`Job.parts`): the user's callbacks, registered objects, schedulers, and what the options keep. Random
numbers are not part of it: they are seeded anew for each shard.

A state is read by unpickling, which runs code: it goes between processes of one training and to files of the same user,
whose code runs there anyway. Never read one of anybody else.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from local_backend.elastic.errors import EngineError
from local_backend.elastic.hooked import Variable
from local_backend.elastic.job import Job
from local_backend.elastic.live import Live, dumps, loads, own

#: Pairs of a live buffer and the value that counts, for buffers that a step has begun to change.
Committed = Iterable[tuple[Tensor, Tensor]]

#: Attributes that torch's base classes keep.
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
_OF_OPTIMIZERS = frozenset({"state", "param_groups"})
#: Longer lists and dicts count as constant tables: their content is no part of the state.
TABLE = 1000


@dataclass
class State:
    """A training at one instant. `meta` fixes the order of the tensors."""

    meta: bytes
    tensors: list[Tensor]

    @property
    def size(self) -> int:
        """Bytes in all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class Replica:
    """The training of this process, to be captured from and restored into; for one thread at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._warned: set[int] = set()

    def capture(self, committed: Committed = ()) -> State:
        """The state as it is; its tensors are the live ones: copy or send them before they change.

        `committed` values stand for live buffers. Warns once of each callback that cannot be pickled.
        """
        live = Live(self._job)
        tensors = [parameter.detach() for parameter in live.parameters]
        meta = {
            "parameters": [parameter.requires_grad for parameter in live.parameters],
            "buffers": _buffers(live, committed, tensors),
            "plain": [_plain_attributes(owner, _OF_MODULES, TABLE) for owner in [*live.modules, *live.losses]],
            "optimizers": dumps([parts_of(optimizer) for optimizer in live.optimizers], live, tensors),
            "parts": [self._part(number, live, tensors) for number in range(len(live.parts))],
        }
        return State(pickle.dumps(meta), [tensor.detach() for tensor in tensors])

    def restore(self, state: State, replay: Callable[[Any], None] | None = None) -> list[str]:
        """Take over the state, which stays as it is, into the live objects.

        Returns the names of callbacks that could not be copied whole: attributes that cannot be pickled stay as they
        are here. `replay` is called with each of these callbacks before anything is taken over; it may run the hooks
        that the callback has missed. A Layout must be made anew. Raises EngineError for a state of another model.
        """
        meta = pickle.loads(state.meta)
        incomplete = [number for number, (_, missing) in enumerate(meta["parts"]) if missing]
        live = Live(self._job)
        if replay is not None:
            for callback in self._owners([live.parts[number] for number in incomplete]):
                replay(callback)
            live = Live(self._job)
        _check(live, meta)
        with torch.no_grad():
            for parameter, wants, tensor in zip(live.parameters, meta["parameters"], state.tensors, strict=False):
                _fill(parameter, tensor)
                parameter.requires_grad_(wants)
            for module, buffers in zip(live.modules, meta["buffers"], strict=True):
                _restore_buffers(module, buffers, state.tensors, live.device)
        for owner, attributes in zip([*live.modules, *live.losses], meta["plain"], strict=True):
            # Lists that are as they were may be shared with somebody.
            vars(owner).update({k: v for k, v in attributes.items() if k not in vars(owner) or vars(owner)[k] != v})
        for optimizer, parts in zip(live.optimizers, loads(meta["optimizers"], live, state.tensors), strict=True):
            restore_optimizer(optimizer, parts)
        live = Live(self._job)  # groups may have come or gone
        for part, (data, missing) in zip(live.parts, meta["parts"], strict=True):
            _restore_part(part, loads(data, live, state.tensors), missing)
        return [type(live.parts[number]).__name__ for number in incomplete]

    @staticmethod
    def copy(state: State) -> State:
        """The same with tensors of its own, on the CPU."""
        return State(state.meta, [tensor.detach().to("cpu", copy=True) for tensor in state.tensors])

    def digest(self, committed: Committed = ()) -> str:
        """A fingerprint of parameters, buffers and optimizer: equal where all their bits are equal, and only there."""
        live = Live(self._job)
        tensors = [parameter.detach() for parameter in live.parameters]
        buffers = _buffers(live, committed, tensors)
        digest = hashlib.blake2b(digest_size=16)
        for value in (tensors, buffers, [parts_of(optimizer) for optimizer in live.optimizers]):
            _feed(digest, value, live)
        return digest.hexdigest()

    def _owners(self, parts: list[Any]) -> list[Any]:
        """The callbacks among these parts; all where one of these parts is an object that a callback may hold."""
        callbacks = self._job.callbacks
        found = [callback for callback in callbacks if any(callback is part for part in parts)]
        return callbacks if len(found) < len(parts) else found

    def _part(self, number: int, live: Live, tensors: list[Tensor]) -> tuple[bytes, list[str]]:
        """(pickled attributes, names of those that cannot be pickled) of a callback or another part."""
        part = live.parts[number]
        attributes = _attributes_of(part)
        before = len(tensors)
        try:
            return dumps(attributes, live, tensors), []
        except Exception as error:
            del tensors[before:]
            reason = str(error).partition("\n")[0]
        missing = [name for name, value in attributes.items() if not _can_be_pickled(value, live)]
        if number not in self._warned:
            self._warned.add(number)
            warnings.warn(
                f"{', '.join(missing)} of the {type(part).__name__} cannot be copied to workers that join "
                f"({reason}); there the callback's on_train_begin and on_epoch_begin run instead",
                stacklevel=3,
            )
        return dumps({name: attributes[name] for name in attributes if name not in missing}, live, tensors), missing


def _buffers(live: Live, committed: Committed, tensors: list[Tensor]) -> list[dict[str, tuple[int | None, bool]]]:
    """Per module: name → (index of the buffer, appended to `tensors`, or None; whether a state_dict has it)."""
    instead = {_place(buffer): value for buffer, value in committed}
    numbers: dict[int, int] = {}
    found = []
    for module in live.modules:
        entry: dict[str, tuple[int | None, bool]] = {}
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in numbers:
                numbers[id(buffer)] = len(tensors)
                tensors.append(instead.get(_place(buffer), buffer).detach())
            number = None if buffer is None else numbers[id(buffer)]
            entry[name] = (number, name not in module._non_persistent_buffers_set)
        found.append(entry)
    return found


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """What tells a tensor from others, also through `detach()`."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.device


def parts_of(optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer, taken apart: the dictionaries are copies, for the live ones are only names in a pickle."""
    return {
        "groups": [dict(group) for group in optimizer.param_groups],
        "state": dict(optimizer.state),
        "attributes": _plain_attributes(optimizer, _OF_OPTIMIZERS, None, Tensor),
    }


def _plain_attributes(owner: Any, besides: frozenset[str], most: int | None, *more: type) -> dict[str, Any]:
    """Attributes that are numbers, text and the like, or of the types `more`, also in collections of up to `most`."""
    return {name: value for name, value in vars(owner).items() if name not in besides and _is_plain(value, most, *more)}


def _is_plain(value: Any, most: int | None, *more: type) -> bool:
    if type(value) in (dict, list, tuple, set, frozenset):
        parts = [*value.keys(), *value.values()] if type(value) is dict else value
        return (most is None or len(parts) <= most) and all(_is_plain(part, most, *more) for part in parts)
    return type(value) in (bool, int, float, complex, str, bytes, type(None), *more) or isinstance(value, np.generic)


def _can_be_pickled(value: Any, live: Live) -> bool:
    try:
        dumps(value, live, [])
    except Exception:
        return False
    return True


def _check(live: Live, meta: dict[str, Any]) -> None:
    """Raises EngineError when the state is not one of this model."""
    for what, here, there in (
        ("parameters", len(live.parameters), len(meta["parameters"])),
        ("modules", len(live.modules), len(meta["buffers"])),
        ("callbacks and other parts", len(live.parts), len(meta["parts"])),
    ):
        if here != there:
            raise EngineError(
                f"the training to be copied has {there} {what} and the one here has {here}; callbacks and step "
                "functions must not add or remove any"
            )


def _fill(tensor: Tensor, value: Tensor) -> None:
    """Give the live tensor this value, in place unless shape or type differ."""
    if tensor.shape == value.shape and tensor.dtype == value.dtype:
        tensor.copy_(value)
    else:
        tensor.data = own(value, tensor.device)


def _restore_buffers(
    module: nn.Module, buffers: dict[str, tuple[int | None, bool]], tensors: list[Tensor], device: torch.device
) -> None:
    for name in [name for name in module._buffers if name not in buffers]:
        delattr(module, name)
    for name, (number, persistent) in buffers.items():
        here = module._buffers.get(name)
        if here is None or number is None:
            module.register_buffer(name, None if number is None else own(tensors[number], device), persistent)
        else:
            _fill(here, tensors[number])


def restore_optimizer(optimizer: Optimizer, parts: dict[str, Any]) -> None:
    """Inverse of `parts_of`, in place."""
    groups = optimizer.param_groups
    # The dictionaries stay the same objects, for others may hold them.
    del groups[len(parts["groups"]) :]
    groups.extend({} for _ in range(len(parts["groups"]) - len(groups)))
    for group, values in zip(groups, parts["groups"], strict=True):
        group.clear()
        group.update(values)
    optimizer.state.clear()
    optimizer.state.update(parts["state"])
    vars(optimizer).update(parts["attributes"])


def _attributes_of(part: Any) -> dict[Any, Any]:
    """What of a part is state: its attributes; the items of a dict; those of a list, by their places."""
    if isinstance(part, Variable):
        return part.read()
    if isinstance(part, dict):
        return dict(part)  # a copy: the dict itself is only a name in a pickle
    return dict(enumerate(part)) if isinstance(part, list) else getattr(part, "__dict__", {})


def _restore_part(part: Any, attributes: dict[Any, Any], missing: list[Any]) -> None:
    if isinstance(part, Variable):
        part.write(attributes)
        return
    if isinstance(part, list):
        part[:] = attributes.values()
        return
    here = part if isinstance(part, dict) else getattr(part, "__dict__", {})
    kept = {name: here[name] for name in missing if name in here}
    here.clear()
    here.update({**kept, **attributes})


def _feed(digest: Any, value: Any, live: Live) -> None:
    """Add a value of any nesting to a hash, without ambiguity; live objects by name."""
    name = live.name(value)
    if name is not None:
        digest.update(f"{name};".encode())
    elif isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{value.dtype}{tuple(value.shape)}:".encode())
        digest.update(data.view(torch.uint8).numpy().data)
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)}:".encode())
        for text, key in sorted(((repr(live.name(key) or key), key) for key in value), key=lambda pair: pair[0]):
            digest.update(f"{text}:".encode())
            _feed(digest, value[key], live)
    elif isinstance(value, (list, tuple)):
        digest.update(f"list {len(value)}:".encode())
        for item in value:
            _feed(digest, item, live)
    else:
        digest.update(f"{value!r};".encode() if _is_plain(value, None) else f"{type(value)};".encode())
