"""Fingerprints of tensors and Python values: 64 bits each, equal in every process for equal bits.

The fingerprint of a tensor is the sum of its 64-bit words, each times an odd number that depends on its place, modulo
2**64. This is integer arithmetic, so neither threads nor devices change the result. One changed word always changes the
fingerprint. The sum takes about a tenth of the time of a cryptographic hash. Fingerprints protect against accidents,
not against attackers.

`digest` describes a nested value instead. A tensor or array counts by type, shape and bytes, a dict or set whatever the
order of its items, an object by class and attributes. Memory addresses never count. If an object does not show its
content, as random generators do not, only its class counts.
"""

from __future__ import annotations

import functools
import hashlib
import random
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from local_backend.elastic.script.attributes import attributes_of

#: Bytes of a digest. Its text has twice as many hexadecimal digits.
SIZE = 8
#: Maximum depth of nested objects that a digest covers.
DIGEST_DEPTH = 32
#: Types whose values count by name.
CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def digest(value: Any, ignore: Iterable[Any] = ()) -> str:
    """Return the digest of a value as 16 hexadecimal digits. Objects in `ignore` count by their class only."""
    writer = _Writer(ignore)
    writer.add(value, DIGEST_DEPTH)
    return writer.hash.hexdigest()


class _Writer:
    """Writes a value into a hash without ambiguity."""

    def __init__(self, ignore: Iterable[Any]) -> None:
        self.hash = hashlib.blake2b(digest_size=SIZE)
        self._ignored = list(ignore)
        #: Ids of ignored objects and of the objects that contain the current one: an object may contain itself.
        self._around = {id(item) for item in self._ignored}

    def add(self, value: Any, depth: int) -> None:
        """Write one value and its content, at most `depth` levels deep."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, bytearray)):
            self._plain(value)
        elif id(value) in self._around or depth == 0:
            self._mark(f"object {_kind(value)}")
        else:
            self._around.add(id(value))
            self._composed(value, depth - 1)
            self._around.discard(id(value))

    def _mark(self, text: str, data: Any = b"") -> None:
        """Write the lengths of a heading and of its data, then both."""
        head, data = text.encode(), memoryview(data)
        self.hash.update(struct.pack("<QQ", len(head), data.nbytes))
        self.hash.update(head)
        self.hash.update(data)

    def _plain(self, value: Any) -> None:
        if isinstance(value, (bytes, bytearray)):
            self._mark("bytes", value)
        elif isinstance(value, str):
            self._mark("str", value.encode(errors="surrogatepass"))
        elif isinstance(value, float):
            self._mark("float", struct.pack("<d", value))
        else:
            self._mark(type(value).__name__, repr(value).encode())

    def _composed(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, (np.ndarray, np.generic)):
            self._array(np.asarray(value), depth)
        elif isinstance(value, Mapping):
            self._unordered(f"dict {len(value)}", value.items(), depth)
        elif isinstance(value, (list, tuple, range)):
            self._mark(f"list {len(value)}")
            for item in value:
                self.add(item, depth)
        elif isinstance(value, (set, frozenset)):
            self._unordered(f"set {len(value)}", value, depth)
        elif callable(getattr(value, "tobytes", None)) and hasattr(value, "size"):
            # Images of Pillow.
            self._mark(f"{_kind(value)} {value.size} {getattr(value, 'mode', '')}", value.tobytes())
        elif isinstance(value, CODE):
            self._mark(f"code {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}")
        else:
            self._object(value, depth)

    def _unordered(self, text: str, items: Iterable[Any], depth: int) -> None:
        self._mark(text)
        for part in sorted(self._inner(item, depth) for item in items):
            self.hash.update(part)

    def _inner(self, item: Any, depth: int) -> bytes:
        """Return the digest of a single item."""
        outer, self.hash = self.hash, hashlib.blake2b(digest_size=SIZE)
        try:
            self.add(item, depth)
            return self.hash.digest()
        finally:
            self.hash = outer

    def _tensor(self, tensor: torch.Tensor) -> None:
        heading = f"tensor {tensor.dtype} {tuple(tensor.shape)}"
        plain = tensor.detach()
        if plain.is_quantized:
            plain = plain.int_repr()
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        plain = plain.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        self._mark(heading, plain.view(torch.uint8).numpy().data)

    def _array(self, array: np.ndarray, depth: int) -> None:
        heading = f"array {array.dtype} {array.shape}"
        if array.dtype.hasobject:
            self._mark(heading)
            self.add(array.tolist(), depth)
        else:
            self._mark(heading, np.frombuffer(array.tobytes(), np.uint8))

    def _object(self, value: Any, depth: int) -> None:
        self._mark(f"object {_kind(value)}")
        self.add(attributes_of(value), depth)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


#: Words that have different multipliers. Longer tensors are cut into rows of this length, and each row becomes a word.
ROW = 1024
#: Words that a GPU multiplies at a time.
CHUNK = ROW << 14
#: Levels of nested containers and objects below a value that `leaves` follows.
LEAF_DEPTH = 20
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, type(None)})
#: Number of items above which a list of rows is represented as a whole.
_LARGE = 1000

#: A function that returns the common name that all processes have for an object, and None for any other object.
NameOf = Callable[[Any], Any]


def of_text(text: str) -> int:
    """Return the fingerprint of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def of_tensors(tensors: list[Tensor]) -> list[int]:
    """Return the fingerprint of the type, shape and bits of each tensor. Waits for a GPU once."""
    sums = [_sum(_words(tensor)) for tensor in tensors]
    away = [i for i, value in enumerate(sums) if value.device.type != "cpu"]
    numbers = dict(zip(away, torch.stack([sums[i] for i in away]).tolist() if away else (), strict=True))
    return [
        of_text(f"{tensor.dtype}{tuple(tensor.shape)}{numbers[i] if i in numbers else value.item()}")
        for i, (tensor, value) in enumerate(zip(tensors, sums, strict=True))
    ]


def leaves(value: Any, path: str, name_of: NameOf) -> Iterator[tuple[str, Tensor | str]]:
    """Yield (path, tensor or text) of everything in a value, in an order that does not depend on the process.

    Attributes of objects are included. Tensors of modules have the names of their state dict. Functions, types, and
    objects below the value that `name_of` knows are represented by their names. An object that was met before, or that
    lies more than `LEAF_DEPTH` levels deep, is represented by its type.
    """
    yield from _leaves(value, path, lambda item: None if item is value else name_of(item), set(), LEAF_DEPTH)


def tensors_in(value: Any, path: str, name_of: NameOf) -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) for the tensors and arrays in a value: the value itself, and items of containers and
    modules, but not of other objects."""
    if name_of(value) is not None:
        return
    tensor = _as_tensor(value)
    if tensor is not None:
        yield path, tensor
    elif isinstance(value, nn.Module):
        yield from _of_module(value, path)
    elif isinstance(value, (Mapping, list, tuple, deque)):
        for key, item in _items(value, name_of):
            yield from tensors_in(item, f"{path}[{key}]", name_of)


def _leaves(value: Any, path: str, name_of: NameOf, met: set[int], depth: int) -> Iterator[tuple[str, Tensor | str]]:
    name = name_of(value)
    tensor = None if name is not None else _as_tensor(value)
    if tensor is not None:
        yield path, tensor
    elif name is not None or isinstance(value, _PLAIN):
        yield path, repr(value if name is None else name)
    elif depth == 0 or id(value) in met:
        yield path, type(value).__qualname__
    elif isinstance(value, (set, frozenset)):
        yield path, repr(sorted(map(repr, value))) if all(isinstance(item, _PLAIN) for item in value) else "set"
    elif isinstance(value, nn.Module):
        met.add(id(value))
        yield from _of_module(value, path)
    else:
        met.add(id(value))
        yield from _inside(value, path, name_of, met, depth)


def _inside(value: Any, path: str, name_of: NameOf, met: set[int], depth: int) -> Iterator[tuple[str, Tensor | str]]:
    if isinstance(value, (Mapping, list, tuple, deque)):
        if type(value) is list and len(value) > _LARGE and _has_plain_rows(value):
            yield path, repr(value)
            return
        items = list(_items(value, name_of))
        if all(isinstance(item, _PLAIN) for _, item in items):
            yield path, repr([(key, name_of(item) or item) for key, item in items])
            return
        yield path, str(len(items))
        for key, item in items:
            yield from _leaves(item, f"{path}[{key}]", name_of, met, depth - 1)
        return
    generator = _state_of_generator(value)
    if generator is not None:
        yield from _leaves(generator, path, name_of, met, depth - 1)
        return
    yield path, getattr(value, "__qualname__", type(value).__qualname__)
    if not isinstance(value, type) and not hasattr(value, "__code__"):
        for attribute, item in sorted(attributes_of(value).items(), key=lambda pair: str(pair[0])):
            yield from _leaves(item, f"{path}.{attribute}", name_of, met, depth - 1)


def _has_plain_rows(values: list[Any]) -> bool:
    """Return whether all items are lists or tuples of plain values, such as the paths and classes of a million images.
    A walk over them in Python would take 10 s."""
    if not {*map(type, values)} <= {list, tuple}:
        return False
    return {*map(type, chain.from_iterable(values))} <= _PLAIN_TYPES


def _items(value: Any, name_of: NameOf) -> Iterator[tuple[str, Any]]:
    """Yield (text of the key or place, item) for a container. The items of a mapping are sorted by these texts."""
    if not isinstance(value, Mapping):
        yield from ((str(i), item) for i, item in enumerate(value))
        return
    keyed = [(_key(key, i, name_of), item) for i, (key, item) in enumerate(value.items())]
    yield from sorted(keyed, key=lambda pair: pair[0])


def _key(key: Any, place: int, name_of: NameOf) -> str:
    """Return a text for a key or address that is the same in all processes; for an object without a name, its place."""
    name = name_of(key)
    if name is None and isinstance(key, (*_PLAIN, tuple)):
        return repr(key)
    return f"#{place}" if name is None else repr(name)


def _of_module(module: nn.Module, path: str) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        yield f"{path}.{name}", tensor.detach()


def _as_tensor(value: Any) -> Tensor | None:
    """Return a tensor or an array of numbers as a tensor, and None for anything else."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.isnative:
        copy = np.array(value, order="C")
        try:
            return torch.from_numpy(copy)
        except TypeError:  # torch lacks long doubles: each element becomes its bytes
            return torch.from_numpy(np.frombuffer(copy, np.uint8).reshape(*copy.shape, copy.itemsize))
    return None


def _state_of_generator(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, (np.random.RandomState, torch.Generator)):
        return value.get_state()
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    return None


@functools.lru_cache
def _weights(device: torch.device) -> Tensor:
    numbers = np.frombuffer(hashlib.shake_128(b"weights of words").digest(8 * ROW), "<i8").astype(np.int64)
    return torch.from_numpy(numbers | 1).to(device)


def _words(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as 64-bit whole numbers."""
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    dense = dense.int_repr() if dense.is_quantized else dense
    if not dense.numel():  # its strides may permit no view
        return torch.empty(0, dtype=torch.int64, device=dense.device)
    flat = dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if flat.numel() % 8:
        flat = nn.functional.pad(flat, (0, -flat.numel() % 8))
    elif flat.storage_offset() % 8:
        flat = flat.clone()
    return flat.view(torch.int64)


def _sum(words: Tensor) -> Tensor:
    """Return the sum of the words times their multipliers, modulo 2**64. Rows of a long tensor become words again."""
    weights = _weights(words.device)
    while words.numel() > ROW:
        rows = words.numel() // ROW * ROW
        rest = words[rows:]
        parts = [*_rows(words[:rows].view(-1, ROW), weights), (rest * weights[: rest.numel()]).sum().reshape(1)]
        words = torch.cat(parts)
    return (words * weights[: words.numel()]).sum()


def _rows(words: Tensor, weights: Tensor) -> list[Tensor]:
    if words.device.type == "cpu":
        return [words @ weights]
    return [(part * weights).sum(1) for part in words.split(CHUNK // ROW)]
