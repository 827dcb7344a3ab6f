"""Tensors of the Open Inference Protocol (OIP, version 2): JSON, and the binary tensor data extension.

numpy is imported only when tensors are read or written.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from local_backend.inference.kernel.problems import TaskError

if TYPE_CHECKING:
    import numpy as np

#: Datatype → (name of numpy's type, bytes of an element). BF16 has no type of numpy: its arrays are uint16.
_TYPES = {
    "BOOL": ("bool", 1), "UINT8": ("uint8", 1), "UINT16": ("uint16", 2), "UINT32": ("uint32", 4),
    "UINT64": ("uint64", 8), "INT8": ("int8", 1), "INT16": ("int16", 2), "INT32": ("int32", 4), "INT64": ("int64", 8),
    "FP16": ("float16", 2), "BF16": ("uint16", 2), "FP32": ("float32", 4), "FP64": ("float64", 8),
}
_DATATYPES = {name: datatype for datatype, (name, _) in _TYPES.items() if datatype != "BF16"}
_BYTES_LENGTH = struct.Struct("<I")
#: Names under which plain JSON requests give their samples.
_PLAIN = ("instances", "data", "inputs")


@dataclass(frozen=True)
class TensorRequest:
    """A request with tensors."""

    #: Name → array. Elements of BYTES are `bytes` in arrays of objects.
    inputs: dict[str, np.ndarray]
    datatypes: dict[str, str] = field(default_factory=dict)
    id: str | None = None
    #: The outputs that the client wants: name → whether in binary form; empty for all.
    wanted: dict[str, bool] = field(default_factory=dict)
    #: Whether outputs that are not in `wanted` are binary.
    binary: bool = False
    #: The member of a plain JSON request that had the samples; None for a request of OIP.
    plain: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorAnswer:
    """The body of an answer. `header_length`: the bytes of JSON before binary tensors; None if it is JSON alone."""

    body: bytes
    header_length: int | None = None


def numpy_type(datatype: str) -> str | None:
    """Return the name of numpy's type for the elements of a datatype; None for BYTES and unknown ones."""
    return _TYPES[datatype][0] if datatype in _TYPES else None


def read(body: bytes | memoryview, header_length: int | None = None) -> TensorRequest:
    """Return the tensors of a request: OIP, or plain JSON with `instances`, `data` or `inputs`.

    Raises TaskError with status 400 for a body that is neither.
    """
    text = body if header_length is None else body[:header_length]
    if header_length is not None and len(text) != header_length:
        raise _bad(f"The request has {len(body)} bytes, but its JSON should have {header_length}.")
    try:
        found = json.loads(bytes(text))
    except (ValueError, RecursionError) as problem:
        raise _bad(f"The request is not JSON: {problem}.") from None
    if isinstance(found, dict) and _is_oip(found):
        return _read_oip(found, memoryview(body)[len(text):])
    return _read_plain(found)


def _is_oip(found: Mapping[str, Any]) -> bool:
    inputs = found.get("inputs")
    return isinstance(inputs, list) and bool(inputs) and all(
        isinstance(one, dict) and "datatype" in one for one in inputs)


def _read_oip(found: dict[str, Any], rest: memoryview) -> TensorRequest:
    inputs, datatypes, at = {}, {}, 0
    for one in found["inputs"]:
        name, datatype, shape = one.get("name"), one.get("datatype"), one.get("shape")
        if not isinstance(name, str):
            raise _bad("An input has no name.")
        if not isinstance(datatype, str) or (datatype not in _TYPES and datatype != "BYTES"):
            raise _bad(f"Input {name}: datatype {datatype!r} is unknown. Known: {', '.join([*_TYPES, 'BYTES'])}.")
        if not isinstance(shape, list) or len(shape) > 32 or not all(type(size) is int and size >= 0 for size in shape):
            raise _bad(f"Input {name}: shape {shape!r} is not a list of integers.")
        size = _parameters(one).get("binary_data_size")
        if size is None:
            inputs[name] = _from_json(name, datatype, shape, one.get("data"))
        elif type(size) is not int or not 0 <= size <= len(rest) - at:
            raise _bad(f"Input {name}: binary_data_size {size!r}, but {len(rest) - at} bytes are left.")
        else:
            inputs[name] = _from_bytes(name, datatype, shape, rest[at:at + size])
            at += size
        datatypes[name] = datatype
    if at != len(rest):
        raise _bad(f"The request has {len(rest) - at} bytes after its last tensor.")
    parameters = _parameters(found)
    binary = parameters.get("binary_data_output") is True
    wanted = {}
    for one in found.get("outputs") or []:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise _bad("A requested output has no name.")
        wanted[one["name"]] = bool(_parameters(one).get("binary_data", binary))
    name = found.get("id")
    return TensorRequest(inputs, datatypes, None if name is None else str(name), wanted, binary, None, parameters)


def _parameters(found: Mapping[str, Any]) -> dict[str, Any]:
    value = found.get("parameters")
    return value if isinstance(value, dict) else {}


def _from_json(name: str, datatype: str, shape: list[int], data: Any) -> np.ndarray:
    import numpy as np

    if not isinstance(data, list):
        raise _bad(f"Input {name} has no data.")
    if datatype == "BYTES":
        flat = _flat(data)
        if not all(isinstance(one, str) for one in flat):
            raise _bad(f"Input {name}: the elements of BYTES in JSON are strings.")
        array = np.empty(len(flat), object)
        array[:] = [one.encode("utf-8", "surrogatepass") for one in flat]
        return _shaped(name, array, shape)
    try:
        if datatype == "BF16":
            wide = np.asarray(data, np.float32)
            array = _to_bf16(wide)
        else:
            array = _numbers(data, datatype)
    except (ValueError, TypeError, OverflowError) as problem:
        raise _bad(f"Input {name}: the data is not of datatype {datatype}: {problem}.") from None
    return _shaped(name, array.reshape(-1), shape)


def _numbers(data: list[Any], datatype: str) -> np.ndarray:
    """Return numbers of JSON as an array. Raises ValueError, TypeError or OverflowError."""
    import numpy as np

    target = np.dtype(_TYPES[datatype][0])
    given = np.asarray(data)
    if given.dtype.kind not in "biuf" or (given.dtype.kind == "f" and target.kind in "biu"):
        # Texts and None, rows that differ in length, or integers too large for a type that numpy chooses.
        if not all(isinstance(one, int if target.kind in "biu" else (int, float)) for one in _flat(data)):
            wanted = {"f": "a number", "b": "a truth value"}.get(target.kind, "an integer")
            raise ValueError(f"an element is not {wanted}")
        return np.asarray(data, target)
    if target.kind in "iu" and given.dtype != target and given.size:
        bounds = np.iinfo(target)
        if int(given.min()) < bounds.min or int(given.max()) > bounds.max:
            raise OverflowError(f"an element is outside of {bounds.min} to {bounds.max}")
    with np.errstate(over="ignore"):
        return given.astype(target, copy=False)


def _flat(data: Any) -> list[Any]:
    """Return the elements of nested lists."""
    found, open_ = [], [iter(data)]
    while open_:
        for one in open_[-1]:
            if isinstance(one, list):
                open_.append(iter(one))
                break
            found.append(one)
        else:
            open_.pop()
    return found


def _from_bytes(name: str, datatype: str, shape: list[int], data: memoryview) -> np.ndarray:
    import numpy as np

    if datatype == "BYTES":
        elements = list(_cut_bytes(name, data))
        array = np.empty(len(elements), object)
        array[:] = elements
        return _shaped(name, array, shape)
    kind, size = _TYPES[datatype]
    if len(data) != size * math.prod(shape):
        raise _bad(f"Input {name}: {len(data)} bytes, but {datatype} of shape {shape} has {size * math.prod(shape)}.")
    return np.frombuffer(data, np.dtype(kind).newbyteorder("<")).astype(kind, copy=False).reshape(shape)


def _cut_bytes(name: str, data: memoryview) -> Iterable[bytes]:
    """Yield the elements of a BYTES tensor: each one follows its length (uint32, little-endian)."""
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise _bad(f"Input {name}: an element of BYTES is cut off.")
        (size,) = _BYTES_LENGTH.unpack_from(data, at)
        at += 4
        if at + size > len(data):
            raise _bad(f"Input {name}: an element of BYTES is cut off.")
        yield bytes(data[at:at + size])
        at += size


def _shaped(name: str, array: np.ndarray, shape: list[int]) -> np.ndarray:
    if array.size != math.prod(shape):
        raise _bad(f"Input {name}: {array.size} elements, but shape {shape} has {math.prod(shape)}.")
    return array.reshape(shape)


def _read_plain(found: Any) -> TensorRequest:
    """Return the samples of plain JSON as one input without a name, or one for each member of an object."""

    if isinstance(found, list):
        return TensorRequest({"": _plain_array(found)}, plain="")
    if not isinstance(found, dict):
        raise _bad("The request is neither a list nor an object.")
    name = next((one for one in _PLAIN if one in found), None)
    if name is None:
        raise _bad("The request has no `inputs` of the Open Inference Protocol, `instances` or `data`.")
    samples = found[name]
    if isinstance(samples, dict):
        return TensorRequest({key: _plain_array(value) for key, value in samples.items()}, plain=name)
    if isinstance(samples, list) and samples and all(isinstance(one, dict) for one in samples):
        keys = samples[0].keys()
        if any(one.keys() != keys for one in samples):
            raise _bad(f"The objects of `{name}` differ in their members.")
        return TensorRequest({key: _plain_array([one[key] for one in samples]) for key in keys}, plain=name)
    array: np.ndarray = _plain_array(samples)
    return TensorRequest({"": array}, plain=name)


def _plain_array(value: Any) -> np.ndarray:
    """Return JSON as an array: float32, int64, bool, or texts as objects. Raises TaskError."""
    import numpy as np

    if not isinstance(value, list):
        raise _bad("The data is not a list of samples.")
    try:
        array = np.asarray(value)
    except ValueError:
        raise _bad("The rows of the data differ in length.") from None
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind not in "biu":
        raise _bad("The data is not numbers or texts.")
    return array


def write(outputs: Any, request: TensorRequest) -> TensorAnswer:
    """Return the answer to a request. `outputs`: name → array, tensor of torch, or list; or one of them alone.

    OIP gets OIP. Plain JSON gets {"predictions": …}. Raises TaskError for values that are not tensors.
    """
    named = dict(outputs) if isinstance(outputs, Mapping) else {"output": outputs}
    if request.plain is not None:
        found = {name: _listed(*_array(name, value)) for name, value in named.items()}
        return TensorAnswer(_json({"predictions": next(iter(found.values())) if len(found) == 1 else found}))
    unknown = [name for name in request.wanted if name not in named]
    if unknown:
        raise _bad(f"There is no output {unknown[0]!r}. Outputs: {', '.join(named)}.")
    described, parts = [], []
    for name, value in named.items():
        if request.wanted and name not in request.wanted:
            continue
        array, datatype = _array(name, value)
        one: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if request.wanted.get(name, request.binary):
            parts.append(_to_bytes(array, datatype))
            one["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            one["data"] = _listed(array.reshape(-1), datatype)
        described.append(one)
    head: dict[str, Any] = {} if request.id is None else {"id": request.id}
    text = _json(head | {"model_name": os.environ.get("REDHARE_MODEL_NAME", ""), "outputs": described})
    return TensorAnswer(b"".join([text, *parts]), len(text)) if parts else TensorAnswer(text)


def _array(name: str, value: Any) -> tuple[np.ndarray, str]:
    """Return an output as an array with its datatype. Raises TaskError."""
    import numpy as np

    wanted = None
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        value, wanted = value
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            import torch

            return value.contiguous().view(torch.int16).numpy().view(np.uint16), "BF16"
        value = value.numpy()
    try:
        array = np.asarray(value)
    except ValueError:
        raise TaskError(f"Output {name} is not a tensor: its rows differ in length.") from None
    if wanted == "BF16":
        return (array if array.dtype == np.uint16 else _to_bf16(array.astype(np.float32))), "BF16"
    if array.dtype.kind in "OSU":
        if not all(isinstance(one, (str, bytes)) for one in array.reshape(-1)):
            raise TaskError(f"Output {name} is not a tensor: an element is neither a number nor a text.")
        return array, "BYTES"
    datatype = _DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise TaskError(f"Output {name}: the type {array.dtype.name} is not a datatype of the protocol.")
    return array, datatype


def _to_bf16(wide: np.ndarray) -> np.ndarray:
    """Return float32 numbers as the uint16 of BF16, rounded to the nearest, ties to even."""
    import numpy as np

    bits = np.ascontiguousarray(wide).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)


def from_bf16(array: np.ndarray) -> np.ndarray:
    """Return the uint16 of BF16 as float32 numbers."""
    import numpy as np

    return (array.astype(np.uint32) << 16).view(np.float32)


def _to_bytes(array: np.ndarray, datatype: str) -> bytes:
    if datatype != "BYTES":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    elements = [one.encode() if isinstance(one, str) else bytes(one) for one in array.reshape(-1)]
    return b"".join(part for one in elements for part in (_BYTES_LENGTH.pack(len(one)), one))


def _listed(array: np.ndarray, datatype: str) -> Any:
    """Return an array as JSON values. Raises TaskError for bytes that are not text."""
    if datatype == "BF16":
        return from_bf16(array).tolist()
    if datatype != "BYTES":
        return array.tolist()
    try:
        return _texts(array.tolist())
    except UnicodeDecodeError:
        raise TaskError("An output has bytes that are not UTF-8. Request it in binary form.", 400) from None


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _bad(sentence: str) -> TaskError:
    return TaskError(sentence, 400)
