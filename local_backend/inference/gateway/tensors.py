"""Requests and answers of the Open Inference Protocol: between gRPC messages and the binary form of REST.

The binary form is a JSON header, and after it the bytes of each tensor with the parameter `binary_data_size`: numbers
little-endian, in row-major order; each element of BYTES after its length (uint32).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from dlicmd.contract import inference_wire as wire
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.refusal import Refused

#: Data type → format of one element for `struct`, and the member of `InferTensorContents`.
_FORMATS = {
    "BOOL": ("?", "bool_contents"), "INT8": ("b", "int_contents"), "INT16": ("h", "int_contents"),
    "INT32": ("i", "int_contents"), "INT64": ("q", "int64_contents"), "UINT8": ("B", "uint_contents"),
    "UINT16": ("H", "uint_contents"), "UINT32": ("I", "uint_contents"), "UINT64": ("Q", "uint64_contents"),
    "FP16": ("e", ""), "FP32": ("f", "fp32_contents"), "FP64": ("d", "fp64_contents"),
}
_LENGTH = struct.Struct("<I")
_SIZE = "binary_data_size"


def to_rest(request: Any) -> tuple[bytes, int]:
    """Return a `ModelInferRequest` in the binary form, and the length of its header. Raises Refused."""
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise refusals.bad_request(f"The request has {len(request.inputs)} inputs and {len(raw)} raw contents")
    inputs, parts = [], []
    for position, tensor in enumerate(request.inputs):
        data = raw[position] if raw else _raw_contents(tensor)
        parts.append(data)
        inputs.append({"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype,
                       "parameters": _parameters(tensor.parameters) | {_SIZE: len(data)}})
    about: dict[str, Any] = {"inputs": inputs,
                             "parameters": _parameters(request.parameters) | {"binary_data_output": True}}
    if request.id:
        about["id"] = request.id
    if request.outputs:
        about["outputs"] = [{"name": one.name, "parameters": _parameters(one.parameters) | {"binary_data": True}}
                            for one in request.outputs]
    header = json.dumps(about).encode()
    return b"".join([header, *parts]), len(header)


def _parameters(found: Any) -> dict[str, Any]:
    return {name: getattr(value, kind) for name, value in found.items()
            if (kind := value.WhichOneof("parameter_choice")) is not None}


def _raw_contents(tensor: Any) -> bytes:
    """Return the elements of a typed tensor as bytes. Raises Refused."""
    if tensor.datatype == "BYTES":
        return _raw_texts(tensor.contents.bytes_contents)
    code, member = _FORMATS.get(tensor.datatype, ("", ""))
    if not member:
        raise refusals.bad_request(f"The input {tensor.name} has the data type {tensor.datatype!r}, which needs "
                                   "raw_input_contents" if code or tensor.datatype == "BF16" else
                                   f"The input {tensor.name} has the unknown data type {tensor.datatype!r}")
    return _packed(code, list(getattr(tensor.contents, member)), tensor.name)


def _packed(code: str, values: list[Any], name: str) -> bytes:
    try:
        return struct.pack(f"<{len(values)}{code}", *values)
    except (struct.error, OverflowError, TypeError) as error:
        raise refusals.bad_request(f"The tensor {name} has a value that its data type does not have: {error}") from None


def _raw_texts(values: Iterable[bytes]) -> bytes:
    return b"".join(part for value in values for part in (_LENGTH.pack(len(value)), value))


def from_rest(body: bytes, length: int | None, response: Any) -> None:
    """Fill a `ModelInferResponse` with an answer of a kernel; `length` is that of the header of the binary form, None
    for an answer of JSON alone. Raises Refused."""
    try:
        about = json.loads(body if length is None else body[:length])
        if "error" in about:
            raise refusals.kernel_failed(str(about["error"]))
        at = len(body) if length is None else length
        for one in about["outputs"]:
            tensor = response.outputs.add(name=one["name"], datatype=one["datatype"], shape=one["shape"])
            parameters = dict(one.get("parameters") or {})
            size = parameters.pop(_SIZE, None)
            _set_parameters(tensor.parameters, parameters)
            if size is None:
                data = _of_json(one["datatype"], one["data"], one["name"])
            else:
                data, at = body[at:at + size], at + size
                if size < 0 or at > len(body):
                    raise ValueError(f"the output {one['name']} is cut off")
            response.raw_output_contents.append(data)
        response.model_version = response.model_version or str(about.get("model_version") or "")
        response.id = response.id or str(about.get("id") or "")
        _set_parameters(response.parameters, about.get("parameters") or {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(500, "inference.kernel_answer", "The answer of the kernel does not follow the Open Inference "
                      f"Protocol: {type(error).__name__}: {error}") from None


def _set_parameters(target: Any, found: dict[str, Any]) -> None:
    for name, value in found.items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int):
            target[name].int64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        else:
            target[name].string_param = value if isinstance(value, str) else json.dumps(value)


def _of_json(datatype: str, data: Any, name: str) -> bytes:
    """Return elements in JSON, nested or flat, as bytes. Raises Refused or ValueError."""
    values = list(_flat(data))
    if datatype == "BYTES":
        return _raw_texts(value.encode() if isinstance(value, str) else json.dumps(value).encode() for value in values)
    if datatype == "BF16":
        packed = _packed("f", values, name)
        return b"".join(packed[at + 2:at + 4] for at in range(0, len(packed), 4))
    if datatype not in _FORMATS:
        raise ValueError(f"the output {name} has the unknown data type {datatype!r}")
    return _packed(_FORMATS[datatype][0], values, name)


def _flat(data: Any) -> Iterator[Any]:
    for one in data if isinstance(data, list) else [data]:
        if isinstance(one, list):
            yield from _flat(one)
        else:
            yield one


def header_length(headers: dict[str, str], size: int) -> int | None:
    """Return the length of the JSON of a request in the binary form; None if it is JSON alone. Raises Refused."""
    text = headers.get(wire.HEADER_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 12 or int(text) > size:
        raise refusals.bad_request(f"Inference-Header-Content-Length must be a length within the body of {size} bytes, "
                                   f"but it is {text[:40]!r}")
    return int(text)
