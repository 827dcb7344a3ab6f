"""Tensors of the Open Inference Protocol, in JSON and in binary form, and of plain JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from local_backend.inference.kernel import frames
from local_backend.inference.kernel.problems import TaskError
from local_backend.inference.kernel.tasks import TaskBatch, TaskContext
from local_backend.inference.kernel.tensors import TensorRequest, from_bf16, read, write

NUMBERS = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}


def request(*inputs: dict[str, Any], **members: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **members}).encode()


def values(datatype: str) -> st.SearchStrategy[Any]:
    kind = np.dtype(NUMBERS[datatype])
    if kind.kind == "b":
        return st.booleans()
    if kind.kind == "f":
        return st.floats(width=kind.itemsize * 8, allow_nan=False, allow_infinity=False)
    return st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))


@given(st.data())
@pytest.mark.parametrize("datatype", sorted(NUMBERS))
def test_numbers_keep_their_values(datatype: str, data: st.DataObject) -> None:
    """Through JSON and the binary form, in both directions."""
    found = data.draw(st.lists(values(datatype), max_size=6))
    array = np.array(found, NUMBERS[datatype])
    text = request({"name": "x", "datatype": datatype, "shape": [len(found)], "data": found})
    binary = request({"name": "x", "datatype": datatype, "shape": [len(found)],
                      "parameters": {"binary_data_size": array.nbytes}}, parameters={"binary_data_output": True})
    for body, length in ((text, None), (binary + array.tobytes(), len(binary))):
        asked = read(body, length)
        assert asked.inputs["x"].dtype == array.dtype and np.array_equal(asked.inputs["x"], array)
        answer = write({"y": asked.inputs["x"]}, asked)
        assert (answer.header_length is None) == (length is None)
        (output,) = json.loads(answer.body[:answer.header_length])["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("y", datatype, [len(found)])
        if length is None:
            assert np.array_equal(np.array(output["data"], array.dtype), array)
        else:
            assert answer.body[answer.header_length:] == array.tobytes()


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5))
def test_bytes_keep_their_values(elements: list[bytes]) -> None:
    data = b"".join(len(one).to_bytes(4, "little") + one for one in elements)
    head = request({"name": "x", "datatype": "BYTES", "shape": [len(elements), 1],
                    "parameters": {"binary_data_size": len(data)}},
                   outputs=[{"name": "y", "parameters": {"binary_data": True}}])
    asked = read(head + data, len(head))
    assert asked.inputs["x"].reshape(-1).tolist() == elements
    answer = write({"y": asked.inputs["x"], "z": [1]}, asked)
    assert answer.body[answer.header_length:] == data
    (output,) = json.loads(answer.body[:answer.header_length])["outputs"]  # only the requested one
    assert output["parameters"] == {"binary_data_size": len(data)}


def test_texts_are_strings_in_json() -> None:
    asked = read(request({"name": "x", "datatype": "BYTES", "shape": [2], "data": ["é", ""]}, id="7"))
    assert asked.inputs["x"].tolist() == ["é".encode(), b""]
    answer = json.loads(write({"y": np.array(["a", "bc"]), "z": asked.inputs["x"]}, asked).body)
    assert answer["id"] == "7"
    assert [(one["datatype"], one["data"]) for one in answer["outputs"]] == [
        ("BYTES", ["a", "bc"]), ("BYTES", ["é", ""])]
    with pytest.raises(TaskError):
        write({"y": [b"\xff"]}, asked)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-2.0**120, max_value=2.0**120))
def test_bf16_is_rounded_as_torch_does(value: float) -> None:
    wanted = torch.tensor([value], dtype=torch.float32).to(torch.bfloat16)
    asked = read(request({"name": "x", "datatype": "BF16", "shape": [1], "data": [value]},
                         parameters={"binary_data_output": True}))
    assert asked.inputs["x"].dtype == np.uint16
    assert from_bf16(asked.inputs["x"])[0] == wanted.float().item()
    answer = write({"torch": wanted, "numpy": (asked.inputs["x"], "BF16")}, asked)
    outputs = json.loads(answer.body[:answer.header_length])["outputs"]
    assert [one["datatype"] for one in outputs] == ["BF16", "BF16"]
    assert answer.body[answer.header_length:][:2] == answer.body[-2:]


@pytest.mark.parametrize("body", [
    b"", b"{", b"7", b"{}", b'"x"', b"[" * 100_000, b'{"inputs": 1e400}', b'{"instances": [[1], [1, 2]]}',
    b'{"instances": [{"a": 1}, {"b": 1}]}', b'{"instances": [null]}', b"\xff",
    request({"datatype": "FP32", "shape": [1], "data": [1]}),
    request({"name": "x", "datatype": "FP99", "shape": [1], "data": [1]}),
    request({"name": "x", "datatype": ["FP32"], "shape": [1], "data": [1]}),
    request({"name": "x", "datatype": "FP32", "shape": [-1], "data": [1]}),
    request({"name": "x", "datatype": "FP32", "shape": [2], "data": [1]}),
    request({"name": "x", "datatype": "FP32", "shape": "1", "data": [1]}),
    request({"name": "x", "datatype": "FP32", "shape": [1] * 99, "data": [1]}),
    request({"name": "x", "datatype": "FP32", "shape": [1]}),
    request({"name": "x", "datatype": "FP32", "shape": [1], "data": ["1.5"]}),
    request({"name": "x", "datatype": "FP32", "shape": [1], "data": [None]}),
    request({"name": "x", "datatype": "FP32", "shape": [2], "data": [[1], [1, 2]]}),
    request({"name": "x", "datatype": "INT8", "shape": [1], "data": [128]}),
    request({"name": "x", "datatype": "INT64", "shape": [1], "data": [2**63]}),
    request({"name": "x", "datatype": "INT64", "shape": [1], "data": [1.5]}),
    request({"name": "x", "datatype": "UINT8", "shape": [1], "data": [-1]}),
    request({"name": "x", "datatype": "BYTES", "shape": [1], "data": [1]}),
    request({"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}),
    request({"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}, outputs=["y"]),
])
def test_requests_that_are_not_valid_are_refused(body: bytes) -> None:
    with pytest.raises(TaskError) as refused:
        read(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(("parameters", "rest", "length"), [
    ({"binary_data_size": 4}, b"123", None), ({"binary_data_size": 3}, b"123", None),
    ({"binary_data_size": 4}, b"12345", None), ({"binary_data_size": -1}, b"", None),
    ({"binary_data_size": 4}, b"", 10_000), ({"binary_data_size": "4"}, b"1234", None),
])
def test_binary_requests_that_are_not_valid_are_refused(parameters: Any, rest: bytes, length: int | None) -> None:
    head = request({"name": "x", "datatype": "FP32", "shape": [1], "parameters": parameters})
    for datatype in (b"FP32", b"BYTES"):
        with pytest.raises(TaskError):
            read(head.replace(b"FP32", datatype) + rest, length or len(head) + len(datatype) - 4)


def test_plain_json_gets_predictions() -> None:
    for name in ("instances", "data", "inputs"):
        asked = read(json.dumps({name: [[1.5, 2], [3, 4]]}).encode())
        assert asked.inputs[""].dtype == np.float32 and asked.inputs[""].shape == (2, 2)
        assert json.loads(write(asked.inputs[""] * 2, asked).body) == {"predictions": [[3, 4], [6, 8]]}
    asked = read(b"[[1, 2]]")
    assert json.loads(write({"a": [1], "b": ["x"]}, asked).body) == {"predictions": {"a": [1], "b": ["x"]}}
    asked = read(json.dumps({"instances": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}).encode())
    assert asked.inputs["a"].tolist() == [1, 2] and asked.inputs["b"].tolist() == ["x", "y"]


@pytest.mark.parametrize("value", [[[1], [1, 2]], [None], [{}], object(), np.array([1j])])
def test_values_that_are_no_tensors_are_refused(value: Any) -> None:
    with pytest.raises(TaskError):
        write({"y": value}, TensorRequest({}))


def test_a_task_reads_and_sets_tensors() -> None:
    array = np.array([[1, 2]], np.float32)
    head = request({"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
                   outputs=[{"name": "y", "parameters": {"binary_data": True}}])
    sent: list[bytes] = []
    asked = frames.KernelTask(1, head + array.tobytes(), {"header_length": len(head)})
    batch = TaskBatch(frames.batch([asked])[5:], lambda parts: sent.extend(parts) or True)
    task: TaskContext = batch.tasks[0]
    assert task.set_tensors({"y": task.tensors()["x"] + 1}) is True
    batch.finish()
    ((_, payload),) = frames.FrameReader().feed(b"".join(sent))
    reply = frames.reply_of(payload)
    assert reply.body[reply.meta["header_length"]:] == (array + 1).tobytes()
