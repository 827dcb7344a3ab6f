"""The state of a training that is equal on all members: workers that join copy it, and snapshots store it.

The state contains all parameters and buffers, the optimizers with their hyper-parameters, and which parameters are
frozen. It contains the mode of each module and the plain values among its attributes, such as the rate of a Dropout. It
contains the attributes of the other parts (`TrainingJob.parts`): the user's callbacks, registered objects, schedulers,
and the values that options keep. Random numbers are not part of the state: they are seeded anew for each shard.

Reading a state unpickles it, which runs code. A state is sent only between processes of one training and written only
to files of the same user, whose code runs there anyway. Never read a state of another user.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.attributes import (
    attributes_of,
    has_attributes,
    put_attributes,
    replace_attributes,
)
from local_backend.elastic.script.hooked import Variable, own_attributes
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.script.user_code import is_user_module
from local_backend.elastic.state.live import Live, dumps, loads, own


def result_of(job: TrainingJob) -> bytes:
    """Return, as bytes, everything that training has changed in model, loss, optimizer and callbacks."""
    # The outer optimizer of asynchronous training is of no use after the training, and the script has no late parts.
    replica = Replica(replace(job, outer=None, late=[]))
    return to_bytes(replica.copy(replica.capture()))


def take_over(job: TrainingJob, result: bytes) -> None:
    """Give the script's objects the state that they have in the worker that called `result_of`. Each object stays the
    same and on its device. Raises EngineError when callbacks have added parameters to the model."""
    Replica(job).restore(from_bytes(result))


def to_bytes(state: ReplicaState) -> bytes:
    """Return a state, whose tensors are on the CPU, as bytes for `from_bytes`."""
    buffer = io.BytesIO()
    torch.save({"meta": state.meta, "tensors": state.tensors}, buffer)
    return buffer.getvalue()


def from_bytes(blob: bytes) -> ReplicaState:
    """Return the state that `to_bytes` was given."""
    return ReplicaState(**torch.load(io.BytesIO(blob), weights_only=True))


#: Pairs (live buffer, its committed value), for buffers that a step has begun to change.
Committed = Iterable[tuple[Tensor, Tensor]]

#: Attributes that torch's base classes keep.
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
_OF_OPTIMIZERS = frozenset({"state", "param_groups"})
#: Collections with more items count as constant tables: their content is not part of the state.
TABLE = 1000


@dataclass
class ReplicaState:
    """The state of a training at one instant. `meta` determines the order of the tensors."""

    meta: bytes
    tensors: list[Tensor]

    @property
    def size(self) -> int:
        """Bytes in all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class Replica:
    """Captures and restores the training of this process. Only one thread may use it at a time."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._warned: set[int] = set()

    def capture(self, committed: Committed = ()) -> ReplicaState:
        """Return the present state. Its tensors are the live ones: copy or send them before they change.

        `committed` values replace those of live buffers. Warns once about each callback that cannot be pickled.
        """
        live = Live(self._job)
        tensors = [parameter.detach() for parameter in live.parameters]
        meta = {
            "parameters": [parameter.requires_grad for parameter in live.parameters],
            "buffers": _buffers(live, committed, tensors),
            "plain": [_plain_attributes(owner, _OF_MODULES, TABLE) for owner in [*live.modules, *live.losses]],
            "settings": _settings_of([*live.modules, *live.losses]),
            "optimizers": dumps([_all_of(optimizer, live) for optimizer in live.optimizers], live, tensors),
            "parts": [self._part(number, live, tensors) for number in range(len(live.parts))],
        }
        return ReplicaState(pickle.dumps(meta), [tensor.detach() for tensor in tensors])

    def restore(self, state: ReplicaState, replay: Callable[[Any], None] | None = None) -> list[str]:
        """Copy a state into the live objects. The state itself does not change.

        Returns the class names of callbacks that could not be copied completely: their attributes that cannot be
        pickled keep their present values. `replay` is called with each of these callbacks before anything is copied; it
        may run the hooks that the callback has missed. The caller must create a new Layout afterwards. Raises
        EngineError for a state of another model.
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
        owners = [*live.modules, *live.losses]
        for owner, attributes in zip(owners, meta["plain"], strict=True):
            _set_plain(owner, attributes)
        for owner, settings in zip(owners, meta.get("settings", ()), strict=False):  # earlier releases had no settings
            _restore_settings(owner, settings)
        for optimizer, parts in zip(live.optimizers, loads(meta["optimizers"], live, state.tensors), strict=True):
            restore_optimizer(optimizer, parts)
        live = Live(self._job)  # the number of parameter groups may have changed
        for part, (data, missing) in zip(live.parts, meta["parts"], strict=True):
            _restore_part(part, loads(data, live, state.tensors), missing)
        return [type(live.parts[number]).__name__ for number in incomplete]

    @staticmethod
    def copy(state: ReplicaState) -> ReplicaState:
        """Return the same state with its own tensors on the CPU."""
        return ReplicaState(state.meta, [tensor.detach().to("cpu", copy=True) for tensor in state.tensors])

    def digest(self, committed: Committed = ()) -> str:
        """Return a fingerprint of parameters, buffers and optimizers: equal if and only if all their bits are equal."""
        live = Live(self._job)
        tensors = [parameter.detach() for parameter in live.parameters]
        buffers = _buffers(live, committed, tensors)
        digest = hashlib.blake2b(digest_size=16)
        for value in (tensors, buffers, [parts_of(optimizer) for optimizer in live.optimizers]):
            _feed(digest, value, live)
        return digest.hexdigest()

    def _owners(self, parts: list[Any]) -> list[Any]:
        """Return the callbacks among these parts; all callbacks if a part is an object that a callback may hold."""
        callbacks = self._job.callbacks
        found = [callback for callback in callbacks if any(callback is part for part in parts)]
        return callbacks if len(found) < len(parts) else found

    def _part(self, number: int, live: Live, tensors: list[Tensor]) -> tuple[bytes, list[str]]:
        """Return (pickled attributes, names of attributes that cannot be pickled) of a callback or another part."""
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
                f"{', '.join(missing)} of the {type(part).__name__} cannot be copied to workers that join ({reason}); "
                "these workers run the callback's on_train_begin and on_epoch_begin instead",
                stacklevel=3,
            )
        return dumps({name: attributes[name] for name in attributes if name not in missing}, live, tensors), missing


def _buffers(live: Live, committed: Committed, tensors: list[Tensor]) -> list[dict[str, tuple[int | None, bool]]]:
    """Append the buffers to `tensors`. Return per module: name → (index in `tensors` or None, whether persistent).

    A state_dict contains only persistent buffers.
    """
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
    """Return a key that identifies a tensor. A tensor and its `detach()` have the same key."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.device


def parts_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the parts of an optimizer. The dictionaries are copies, because a pickle has only names of live ones."""
    return {
        "groups": [dict(group) for group in optimizer.param_groups],
        "state": dict(optimizer.state),
        "attributes": _plain_attributes(optimizer, _OF_OPTIMIZERS, None, Tensor),
    }


def _all_of(optimizer: Optimizer, live: Live) -> dict[str, Any]:
    """Return the parts of an optimizer, with all attributes that the class or the script has given to it and that can
    be pickled."""
    parts = parts_of(optimizer)
    own = {name: value for name, value in own_attributes(optimizer).items() if name not in parts["attributes"]}
    kept = {name: value for name, value in own.items() if _can_be_pickled(value, live)}
    return {**parts, "attributes": {**parts["attributes"], **kept}}


def _plain_attributes(owner: Any, besides: frozenset[str], most: int | None, *more: type) -> dict[str, Any]:
    """Return the attributes that are plain (numbers, text and similar values) or of the types `more`.

    Collections of such values are plain, too, if they have at most `most` items. `besides`: names to leave out.
    """
    return {
        name: value for name, value in attributes_of(owner).items()
        if name not in besides and _is_plain(value, most, *more)
    }


def _set_plain(owner: Any, attributes: dict[str, Any]) -> None:
    """Set attributes that differ. Equal values are not replaced, because other objects may refer to the same list."""
    here = attributes_of(owner)
    new = {name: value for name, value in attributes.items() if name not in here or here[name] != value}
    put_attributes(owner, new)


#: Name → (plain attributes, settings in attributes) of an object.
Settings = dict[str, tuple[dict[str, Any], Any]]


def _settings_of(owners: Iterable[Any]) -> list[Settings]:
    """Return the settings that each owner holds: objects of the user, such as a configuration, that are no modules. An
    object that several owners hold counts once."""
    met: set[int] = set()

    def settings(owner: Any) -> Settings:
        found: Settings = {}
        for name, value in attributes_of(owner).items():
            if id(value) not in met and _is_settings(value):
                met.add(id(value))
                found[name] = _plain_attributes(value, frozenset(), TABLE), settings(value)
        return found

    return [settings(owner) for owner in owners]


def _restore_settings(owner: Any, settings: Settings) -> None:
    for name, (attributes, inner) in settings.items():
        value = attributes_of(owner).get(name)
        if _is_settings(value):
            _set_plain(value, attributes)
            _restore_settings(value, inner)


def _is_settings(value: Any) -> bool:
    if isinstance(value, (nn.Module, Optimizer, Dataset, type, tuple)) or not has_attributes(value):
        return False
    return isinstance(value, (SimpleNamespace, Namespace)) or is_user_module(type(value).__module__)


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
    """Raise EngineError when the state is not one of this model."""
    for what, here, there in (
        ("parameters", len(live.parameters), len(meta["parameters"])),
        ("modules", len(live.modules), len(meta["buffers"])),
        ("callbacks and other parts", len(live.parts), len(meta["parts"])),
    ):
        if here != there:
            raise EngineError(
                f"the training state to copy has {there} {what}, but this worker has {here}; callbacks and step "
                "functions must not add or remove any"
            )


def _fill(tensor: Tensor, value: Tensor) -> None:
    """Set the live tensor to this value, in place unless shape or dtype differ."""
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
    """Put parts that `parts_of` returned into an optimizer, in place."""
    groups = optimizer.param_groups
    # The dictionaries stay the same objects, because other objects may refer to them.
    del groups[len(parts["groups"]) :]
    groups.extend({} for _ in range(len(parts["groups"]) - len(groups)))
    for group, values in zip(groups, parts["groups"], strict=True):
        group.clear()
        group.update(values)
    optimizer.state.clear()
    optimizer.state.update(parts["state"])
    vars(optimizer).update(parts["attributes"])


def _attributes_of(part: Any) -> dict[Any, Any]:
    """Return the state of a part: its attributes, the items of a dict, or the items of a list by index."""
    if isinstance(part, Variable):
        return part.read()
    if isinstance(part, dict):
        return dict(part)  # a copy, because a pickle has only the name of the dict itself
    return dict(enumerate(part)) if isinstance(part, list) else attributes_of(part)


def _restore_part(part: Any, attributes: dict[Any, Any], missing: list[Any]) -> None:
    if isinstance(part, Variable):
        part.write(attributes)
        return
    if isinstance(part, list):
        part[:] = attributes.values()
        return
    here = _attributes_of(part)
    new = {**{name: here[name] for name in missing if name in here}, **attributes}
    if isinstance(part, dict):
        part.clear()
        part.update(new)
    else:
        replace_attributes(part, new)


def _feed(digest: Any, value: Any, live: Live) -> None:
    """Add a value of any nesting to a hash, without ambiguity. Live objects count by name."""
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
