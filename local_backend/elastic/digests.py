"""Digests of nested values: equal for equal values, in every process of a training.

The digest of a tensor or array covers type, shape and bytes. The digest of a dict or set does not depend on the order
of its items. The digest of an object covers class and attributes. Memory addresses never count. If an object does not
show its content, as random generators do not, only its class counts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

#: Bytes of a digest. Its text has twice as many hexadecimal digits.
SIZE = 8
#: Maximum depth of nested objects that a digest covers.
DEPTH = 32
#: Types whose values count by name.
CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)


def digest(value: Any, ignore: Iterable[Any] = ()) -> str:
    """Return the digest of a value as 16 hexadecimal digits. Objects in `ignore` count by their class only."""
    writer = _Writer(ignore)
    writer.add(value, DEPTH)
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
        attributes = dict(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    attributes[name] = getattr(value, name)
        self._mark(f"object {_kind(value)}")
        self.add(attributes, depth)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
