"""The Open Inference Protocol, as Triton's clients speak it."""

from __future__ import annotations

import gzip
import json
import queue
import threading
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from calls import ask, call
from gateway_host import GatewayHost, model, revision
from support import eventually

from local_backend.inference.control import RequestLimits

http_client = pytest.importorskip("tritonclient.http")
grpc_client = pytest.importorskip("tritonclient.grpc")
pytestmark = pytest.mark.integration

#: Clients of HTTP add to the dictionary that they get.
HEADERS = MappingProxyType({"authorization": "Bearer alice"})
ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(3, 2), np.array([[1, -2]], dtype=np.int64), np.zeros((0, 3), dtype=np.uint8),
    np.array([True, False]), np.array([b"a", b"", b"\xff\0"], dtype=np.object_), np.array([1.5], dtype=np.float16),
]


@pytest.fixture
def grpc(shared: GatewayHost) -> Any:
    with grpc_client.InferenceServerClient(f"127.0.0.1:{shared.grpc_port}") as made:
        yield made


@pytest.fixture
def http(shared: GatewayHost) -> Any:
    with http_client.InferenceServerClient(f"127.0.0.1:{shared.port}") as made:
        yield made


def tensor(kind: Any, array: Any, name: str = "x", **more: Any) -> Any:
    from tritonclient.utils import np_to_triton_dtype
    made = kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, **more)
    return made


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_tensors_go_in_and_out_over_rest(http: Any, array: Any) -> None:
    found = http.infer("m", [tensor(http_client, array)], request_id="7", headers=dict(HEADERS))
    np.testing.assert_array_equal(found.as_numpy("x"), array)
    assert found.get_response()["id"] == "7"


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_tensors_go_in_and_out_over_grpc(grpc: Any, array: Any) -> None:
    found = grpc.infer("m", [tensor(grpc_client, array), tensor(grpc_client, array, "y")], request_id="7",
                       headers=dict(HEADERS))
    np.testing.assert_array_equal(found.as_numpy("x"), array)
    np.testing.assert_array_equal(found.as_numpy("y"), array)
    assert (found.get_response().id, found.get_response().model_name) == ("7", "m")


def test_an_answer_of_json_becomes_a_message(grpc: Any) -> None:
    found = grpc.infer("m", [tensor(grpc_client, ARRAYS[0])], parameters={"json": True}, headers=dict(HEADERS))
    np.testing.assert_array_equal(found.as_numpy("y"), [[1, 2], [3, 4]])
    assert list(found.as_numpy("z")) == [b"a", b"bc"]


def test_compressed_requests_are_served(http: Any, grpc: Any) -> None:
    array = np.zeros(10_000, dtype=np.float32)
    for how in ("gzip", "deflate"):
        found = http.infer("m", [tensor(http_client, array)], headers=dict(HEADERS), request_compression_algorithm=how)
        assert found.as_numpy("x").shape == (10_000,)
        assert grpc.infer("m", [tensor(grpc_client, array)], headers=dict(HEADERS),
                          compression_algorithm=how).as_numpy("x").shape == (10_000,)


def test_json_goes_to_the_kernel_verbatim(shared: GatewayHost) -> None:
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]}
    got = call(shared, body, path="/v2/models/m/infer")
    assert (got.status, got.body, got.headers["content-type"]) == (200, json.dumps(body).encode(), "application/json")


def test_metadata_and_readiness(http: Any, grpc: Any) -> None:
    assert http.is_server_live() and http.is_server_ready() and grpc.is_server_live() and grpc.is_server_ready()
    assert http.get_server_metadata()["extensions"] == list(grpc.get_server_metadata(headers=dict(HEADERS)).extensions)
    about = http.get_model_metadata("m", headers=dict(HEADERS))
    assert (about["name"], about["versions"], about["platform"]) == ("m", ["1"], "test")
    (one,) = grpc.get_model_metadata("m", headers=dict(HEADERS)).inputs
    assert {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} == about["inputs"][0]
    assert http.is_model_ready("m", "1", headers=dict(HEADERS)) and grpc.is_model_ready("m", "1", headers=dict(HEADERS))
    assert not http.is_model_ready("m", "2", headers=dict(HEADERS))
    assert not http.is_model_ready("n", headers=dict(HEADERS))


def test_a_version_is_a_revision(host: GatewayHost) -> None:
    host.serve(model("m", revision(1), revision(2, weight=0)))
    host.kernel(1)
    host.kernel(2, 2)
    for number in (1, 2):
        got = call(host, {"do": "who"}, path=f"/v2/models/m/versions/{number}/infer")
        assert got.value[0] == f"key-{number}"
    assert call(host, path="/v2/models/m/versions/3/infer").code == "inference.no_revision"


def test_a_model_without_kernels_is_not_ready(host: GatewayHost) -> None:
    host.serve(model())
    assert call(host, None, method="GET", path="/v2/models/m/ready").status == 503
    assert call(host, None, method="GET", path="/v2/health/ready").status == 200


@pytest.mark.parametrize(("headers", "name", "expected"), [
    ({}, "m", "UNAUTHENTICATED"), ({"authorization": "Bearer bob"}, "m", "NOT_FOUND"),
    (dict(HEADERS), "n", "NOT_FOUND"),
    ({"authorization": "Bearer reader"}, "m", "PERMISSION_DENIED"),
])
def test_refusals_over_grpc_have_a_status(grpc: Any, headers: dict[str, str], name: str, expected: str) -> None:
    from tritonclient.utils import InferenceServerException
    with pytest.raises(InferenceServerException) as raised:
        grpc.infer(name, [tensor(grpc_client, ARRAYS[0])], headers=dict(headers))
    assert raised.value.status() == f"StatusCode.{expected}"


def test_a_deadline_over_grpc_cancels(host: GatewayHost) -> None:
    from tritonclient.utils import InferenceServerException
    host.serve(model())
    with grpc_client.InferenceServerClient(f"127.0.0.1:{host.port}") as client:
        def arrived() -> bool:
            with pytest.raises(InferenceServerException) as raised:
                client.infer("m", [tensor(grpc_client, ARRAYS[0])], headers=dict(HEADERS), client_timeout=0.3)
            assert raised.value.status() in ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.UNAVAILABLE")
            return host.load().arrived > 0

        eventually(arrived, "a request arrives before its deadline")
    host.wait(lambda load: load.queued == 0)


def test_a_stream_over_grpc_has_many_answers(grpc: Any) -> None:
    got: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.start_stream(lambda result, error: got.put((result, error)), headers=dict(HEADERS))
    grpc.async_stream_infer("m", [tensor(grpc_client, ARRAYS[0])], request_id="a", parameters={"times": 3},
                            enable_empty_final_response=True)
    results = [got.get(timeout=60)[0] for _ in range(4)]
    for result in results[:3]:
        np.testing.assert_array_equal(result.as_numpy("x"), ARRAYS[0])
    finals = [one.get_response().parameters["triton_final_response"].bool_param for one in results]
    assert finals == [False, False, False, True]
    grpc.async_stream_infer("n", [tensor(grpc_client, ARRAYS[0])], request_id="b")
    assert got.get(timeout=60)[1] is not None
    grpc.async_stream_infer("m", [tensor(grpc_client, ARRAYS[1])], request_id="c")
    np.testing.assert_array_equal(got.get(timeout=60)[0].as_numpy("x"), ARRAYS[1])
    grpc.stop_stream()


@pytest.mark.parametrize(("path", "method", "headers", "status"), [
    ("/v2/nothing", "GET", {}, 404), ("/v2/models/m/nothing", "POST", {}, 404), ("/v2/models/m/infer", "GET", {}, 405),
    ("/v2/models/m/infer", "POST", {"Inference-Header-Content-Length": "-1"}, 400),
    ("/v2/models/m/infer", "POST", {"Inference-Header-Content-Length": "6"}, 400),
    ("/v2/models/m/infer", "POST", {"Content-Encoding": "br"}, 415),
    ("/v2/models/m/infer", "POST", {"Content-Encoding": "gzip"}, 400),
    ("/v2/models/m/versions/x/infer", "POST", {}, 404), ("/v2/models//infer", "POST", {}, 404),
])
def test_wrong_requests_are_refused(shared: GatewayHost, path: str, method: str, headers: dict[str, str],
                                    status: int) -> None:
    got = call(shared, b"hello", path=path, method=method, headers=headers)
    assert (got.status, list(got.value)) == (status, ["error"])


def test_a_small_body_that_expands_beyond_the_limit_is_refused(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(body_bytes=100_000)))
    host.kernel()
    bomb = gzip.compress(b"0" * 10_000_000)
    got = call(host, bomb, path="/v2/models/m/infer", headers={"Content-Encoding": "gzip"})
    assert got.status == 413


def test_answers_that_are_none_of_the_protocol_are_errors(host: GatewayHost) -> None:
    from tritonclient.utils import InferenceServerException
    host.serve(model())
    kernel = host.kernel()
    answers = [b"no json", b"{}", b'{"outputs": [{"name": "x"}]}', b'{"error": "wrong shape"}', b"[]",
               b'{"outputs": [{"name": "x", "datatype": "INT8", "shape": [1], "data": [1000]}]}']
    from local_backend.inference.kernel import frames
    kernel.answer = lambda link, task: link.sendall(frames.reply(  # type: ignore[method-assign]
        frames.Reply(task.id, answers.pop(0))))
    with grpc_client.InferenceServerClient(f"127.0.0.1:{host.port}") as client:
        while answers:
            with pytest.raises(InferenceServerException):
                client.infer("m", [tensor(grpc_client, ARRAYS[0])], headers=dict(HEADERS))


def test_a_new_gateway_takes_over_from_a_client_of_grpc(folder: Path) -> None:
    with GatewayHost(folder, grpc_port=0) as host:
        host.serve(model())
        host.kernel()
        old, stop, found = host.process, threading.Event(), []

        def ask_on() -> None:
            with grpc_client.InferenceServerClient(f"127.0.0.1:{host.grpc_port}") as client:
                while not stop.is_set():
                    answer = client.infer("m", [tensor(grpc_client, ARRAYS[0])], headers=dict(HEADERS))
                    found.append(answer.as_numpy("x"))
            found.append(None)

        thread = threading.Thread(target=ask_on, daemon=True)
        thread.start()
        eventually(lambda: len(found) > 20, "requests before")
        host.start_process()
        assert old.wait(60) == 0
        count = len(found)
        eventually(lambda: len(found) > count + 20 or not thread.is_alive(), "requests after")
        stop.set()
        thread.join()
        assert found[-1] is None


def test_grpc_over_http_1_is_refused(shared: GatewayHost) -> None:
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=60)
    got = ask(connection, b"x", path="/inference.GRPCInferenceService/ModelInfer",
              headers={"Content-Type": "application/grpc"})
    assert got.status == 400
    connection.close()
