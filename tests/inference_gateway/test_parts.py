"""Parts of the gateway without input or output: weights, rates, deadlines, frames, tensors, content types."""

from __future__ import annotations

import ast
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from fake_models import Answer
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from dlicmd.contract import error_codes
from local_backend.inference.gateway import answers, refusal, tensors
from local_backend.inference.gateway.choice import TokenRates
from local_backend.inference.gateway.deadlines import STEP, Deadlines
from local_backend.inference.gateway.exchange import limits_of
from local_backend.inference.gateway.grpc_messages import messages
from local_backend.inference.gateway.kernel_frames import batch_frame, read_reply
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.tasks import QueuedRequest
from local_backend.inference.kernel import frames

GATEWAY = Path(refusal.__file__).parent
LOTS = settings(max_examples=examples(1000))


def test_every_error_code_of_the_gateway_is_listed() -> None:
    raised = {node.value for path in GATEWAY.glob("*.py") for node in ast.walk(ast.parse(path.read_text()))
              if isinstance(node, ast.Constant) and isinstance(node.value, str)
              and node.value.startswith("inference.") and node.value != "inference"}
    assert raised == error_codes.INFERENCE.keys()


@LOTS
@given(st.floats(0.1, 50), st.lists(st.floats(0, 3), max_size=60))
def test_a_token_sends_no_more_than_its_rate(rate: float, pauses: list[float]) -> None:
    rates, now, taken = TokenRates(), 0.0, 0
    for pause in pauses:
        now += pause
        wait = rates.take("t", rate, now)
        taken += not wait
        assert wait <= 1 / rate + 1e-9
    assert taken <= now * rate + max(1.0, rate) + 1e-6


@LOTS
@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=50), st.lists(st.floats(0, 120), max_size=5))
def test_deadlines_pass_in_time_and_once(items: list[tuple[float, bool]], looks: list[float]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    kept = {}
    for number, (when, removed) in enumerate(items):
        bucket = deadlines.add(number, when)
        if removed:
            deadlines.remove(number, bucket)
        else:
            kept[number] = when
    for now in sorted(looks):
        due = deadlines.due(now)
        for number in due:
            assert kept.pop(number) <= now
        assert all(when > now - 2 * STEP for when in kept.values())
    following = deadlines.next()
    assert (following is None) == (not kept)


@LOTS
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.sampled_from([b"", b'{"content_type": "x"}']), st.binary()),
                min_size=1, max_size=5))
def test_batches_are_those_of_the_protocol(tasks: list[tuple[int, bytes, bytes]]) -> None:
    made = batch_frame([QueuedRequest(number, "m", body, meta, sink=Answer(), now=0.0)
                        for number, meta, body in tasks])
    expected = frames.batch(frames.KernelTask(number, body, json.loads(meta or b"{}")) for number, meta, body in tasks)
    assert made == expected


@LOTS
@given(st.integers(0, 2**64 - 1), st.binary(), st.booleans(), st.booleans(), st.sampled_from([{}, {"a": 1}]))
def test_replies_are_those_of_the_protocol(number: int, body: bytes, more: bool, failed: bool,
                                           meta: dict[str, Any]) -> None:
    ((_, payload),) = frames.FrameReader().feed(frames.reply(frames.Reply(number, body, more, failed, meta)))
    found, flags, read, rest = read_reply(payload)
    assert (found, rest, json.loads(read or b"{}")) == (number, body, meta)
    assert (bool(flags & frames.MORE), bool(flags & frames.FAILED)) == (more, failed)


@LOTS
@given(st.binary(max_size=40))
def test_bytes_that_are_no_reply_are_malformed(payload: bytes) -> None:
    try:
        read_reply(payload)
    except frames.Malformed:
        pass


@pytest.mark.parametrize(("body", "kind"), [
    (b"{}", "application/json"), (b" [1] \n", "application/json"), (b'"a"', "application/json"), (b"{", "text/plain"),
    (b"[" * 4000, "text/plain"), (b"{" + b" " * 5000 + b"}\n", "application/json"), (b"x" * 5000, "text/plain"),
    (b"NaN", "application/json"), (b"", "text/plain"),
])
def test_the_content_type_of_an_answer(body: bytes, kind: str) -> None:
    assert answers.content_type(body).startswith(kind)


@LOTS
@given(st.text(alphabet="ab\r\n"))
def test_an_event_has_the_lines_of_its_part(text: str) -> None:
    lines = answers.event(text.encode()).decode().removesuffix("\n\n").split("\n")
    expected = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert [line.removeprefix("data: ") for line in lines] == expected


# Tensors ----------------------------------------------------------------------------------------------------------

VALUES = {
    "BOOL": st.booleans(), "INT8": st.integers(-128, 127), "INT16": st.integers(-2**15, 2**15 - 1),
    "INT32": st.integers(-2**31, 2**31 - 1), "INT64": st.integers(-2**63, 2**63 - 1), "UINT8": st.integers(0, 255),
    "UINT16": st.integers(0, 2**16 - 1), "UINT32": st.integers(0, 2**32 - 1), "UINT64": st.integers(0, 2**64 - 1),
    "FP32": st.floats(width=32, allow_nan=False), "FP64": st.floats(allow_nan=False), "BYTES": st.binary(max_size=9),
}
MEMBERS = {"BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents",
           "FP64": "fp64_contents", "BYTES": "bytes_contents"}


@LOTS
@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_a_tensor_goes_to_rest_and_back(data: st.DataObject, datatype: str) -> None:
    values = data.draw(st.lists(VALUES[datatype], max_size=6))
    member = MEMBERS.get(datatype, "uint_contents" if datatype.startswith("U") else "int_contents")
    request = messages().ModelInferRequest(model_name="m", id="7")
    one = request.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(one.contents, member).extend(values)
    request.outputs.add(name="x")
    body, length = tensors.to_rest(request)
    header = json.loads(body[:length])
    assert (header["id"], header["outputs"][0]["parameters"]) == ("7", {"binary_data": True})
    raw = body[length:]
    assert header["inputs"][0]["parameters"]["binary_data_size"] == len(raw)
    answer = json.dumps({"outputs": header["inputs"]}).encode()
    response = messages().ModelInferResponse()
    tensors.from_rest(answer + raw, len(answer), response)
    assert (list(response.raw_output_contents), list(response.outputs[0].shape)) == ([raw], [len(values)])
    if datatype != "BYTES":
        plain = json.dumps({"outputs": [{"name": "x", "datatype": datatype, "shape": [1, len(values)],
                                         "data": [values]}]}).encode()
        nested = messages().ModelInferResponse()
        tensors.from_rest(plain, None, nested)
        assert list(nested.raw_output_contents) == [raw]


def test_a_tensor_of_bf16_is_the_upper_half_of_floats() -> None:
    response = messages().ModelInferResponse()
    body = json.dumps({"outputs": [{"name": "x", "datatype": "BF16", "shape": [2], "data": [1.0, -2.5]}]}).encode()
    tensors.from_rest(body, None, response)
    (raw,) = response.raw_output_contents
    assert struct.unpack("<2f", b"\0\0" + raw[:2] + b"\0\0" + raw[2:]) == (1.0, -2.5)


@LOTS
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
                        ["outputs", "name", "datatype", "shape", "data", "parameters", "error"]), inner)),
       st.none() | st.integers(-5, 100))
def test_any_answer_is_a_message_or_a_refusal(value: Any, length: int | None) -> None:
    try:
        tensors.from_rest(json.dumps(value).encode(), length, messages().ModelInferResponse())
    except Refused as why:
        assert why.status == 500


@pytest.mark.parametrize("wrong", [{"speed": 1}, {"memory": 0}, {"memory": "1"}, {"memory": 1.5}, {"idle_time": True}])
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        limits_of(wrong)
