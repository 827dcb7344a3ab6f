"""Requests over HTTP/1.1 to a gateway process with kernels."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import Any

import pytest
from calls import PATH, Got, ask, call, raw
from gateway_host import FAR, GatewayHost, digest, model, revision
from support import eventually

from local_backend.inference.control import LATENCY_BOUNDS, RequestLimits, Token

pytestmark = pytest.mark.integration


# Bodies and answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("body", "kind"), [
    (b'{"a": [1, 2]}', "application/json"), (b"17", "application/json"), (b"hello", "text/plain; charset=utf-8"),
    (b"", "text/plain; charset=utf-8"), (bytes(range(256)), "text/plain; charset=utf-8"),
    (b"[" + b"1," * 9000 + b"1]", "application/json"), (b"x" * 3_000_000, "text/plain; charset=utf-8"),
])
def test_bodies_go_in_and_out_verbatim(shared: GatewayHost, body: bytes, kind: str) -> None:
    got = call(shared, body)
    assert (got.status, got.body, got.headers["content-type"]) == (200, body, kind)


def test_a_kernel_names_the_content_type(shared: GatewayHost) -> None:
    got = call(shared, {"do": "text", "text": "<p>", "meta": {"content_type": "text/html"}})
    assert (got.body, got.headers["content-type"]) == (b"<p>", "text/html")
    hostile = call(shared, {"do": "text", "text": "x", "meta": {"content_type": "a\r\nx: y"}})
    assert (hostile.headers["content-type"], "x" in hostile.headers) == ("text/plain; charset=utf-8", False)


def test_a_kernel_gets_what_the_request_says_about_its_body(shared: GatewayHost) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    before = time.time()
    found = call(shared, {"do": "meta"}, headers={
        "Content-Type": "application/json", "Request-Timeout": "20", "traceparent": trace}).value
    assert (found["content_type"], found["traceparent"]) == ("application/json", trace)
    assert before + 10 < found["deadline"] < time.time() + 21


def test_a_chunked_body_arrives_whole(shared: GatewayHost) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nConnection: close\r\n"
    got = raw(shared, head.encode() + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n")
    assert got.endswith(b"\r\n\r\nabcde")


def test_a_client_may_wait_for_100_continue(shared: GatewayHost) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as link:
        link.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nContent-Length: 2\r\n"
                     "Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        assert link.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(b"ab")
        assert link.makefile("rb").read().endswith(b"\r\n\r\nab")


def test_a_refused_request_gets_no_100_continue(shared: GatewayHost) -> None:
    got = raw(shared, f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n".encode())
    assert got.startswith(b"HTTP/1.1 401 ")


def test_answers_to_pipelined_requests_come_in_order(shared: GatewayHost) -> None:
    one = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nContent-Length: 4\r\n"
    last = one.encode() + b"Connection: close\r\n\r\nlast"
    got = raw(shared, b"".join(one.encode() + b"\r\nn%03d" % number for number in range(200)) + last)
    bodies = [part.rpartition(b"\r\n\r\n")[2][:4] for part in got.split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b"n%03d" % number for number in range(200)] + [b"last"]


def test_a_connection_serves_many_requests(shared: GatewayHost) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=60)
    assert [ask(connection, b"%d" % number).body for number in range(20)] == [b"%d" % number for number in range(20)]
    assert ask(connection, b"", path="/nothing").status == 404
    assert ask(connection).status == 200
    connection.close()


def whole(link: socket.socket, body: bytes, token: str = "alice") -> Got:
    """Send a request in one piece, as clients do that write head and body together."""
    link.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
                 f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    found = http.client.HTTPResponse(link)
    found.begin()
    return Got(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())


def test_requests_with_the_same_head_have_their_own_bodies(shared: GatewayHost) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as link:
        bodies = [b"%03d" % number for number in range(20)] + [b"longer", b"\r\n\r", b"\r\n\r", b"\r\n"]
        assert [whole(link, body).body for body in bodies] == bodies
        assert whole(link, b"abc", token="reader").status == 403


def test_a_known_head_in_parts_or_in_a_pipeline_is_read_as_any_other(shared: GatewayHost) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nContent-Length: 4\r\n"
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as link:
        for _ in range(3):
            assert whole(link, b"1234").body == b"1234"
        one = head.encode() + b"\r\n"
        link.sendall(one + b"5678" + one + b"9a")
        link.sendall(b"bc" + head.encode() + b"Connection: close\r\n\r\nlast")
        found = link.makefile("rb").read()
    assert [part[-4:] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"5678", b"9abc", b"last"]


def test_a_change_of_the_state_holds_for_a_known_head(host: GatewayHost) -> None:
    host.serve(model(), guest=Token("alice", False, FAR))
    host.kernel()
    with socket.create_connection(("127.0.0.1", host.port), timeout=60) as link:
        assert [whole(link, b"ab", "guest").status for _ in range(3)] == [200] * 3
        host.serve(model(limits=RequestLimits(body_bytes=1)), guest=Token("alice", False, FAR))
        assert whole(link, b"ab", "guest").code == "inference.too_large"
    with socket.create_connection(("127.0.0.1", host.port), timeout=60) as link:
        assert whole(link, b"a", "guest").status == 200
        host.serve(model(), guest=Token("bob", False, FAR))
        assert whole(link, b"a", "guest").code == "inference.no_model"


def test_a_token_expires_while_its_head_is_known(host: GatewayHost) -> None:
    host.serve(model(), guest=Token("alice", False, time.time() + 1.5))
    host.kernel()
    with socket.create_connection(("127.0.0.1", host.port), timeout=60) as link:
        eventually(lambda: whole(link, b"ab", "guest").status == 401, "the token expired")


def test_http_1_0_and_head_are_served(shared: GatewayHost) -> None:
    got = raw(shared, f"POST {PATH} HTTP/1.0\r\nAuthorization: Bearer alice\r\nContent-Length: 2\r\n\r\nab".encode())
    assert got.endswith(b"connection: close\r\n\r\ncontent-length: 2\r\n\r\nab") or got.endswith(b"\r\n\r\nab")
    assert call(shared, None, path="/v2/health/live", method="HEAD", token=None).body == b""


# Streams ----------------------------------------------------------------------------------------------------------


def test_parts_of_an_answer_arrive_in_chunks(shared: GatewayHost) -> None:
    got = call(shared, {"do": "stream", "parts": ["a", "bc", ""]})
    assert (got.status, got.body, got.headers["transfer-encoding"]) == (200, b"abc", "chunked")


def test_parts_of_an_answer_arrive_as_events(shared: GatewayHost) -> None:
    got = call(shared, {"do": "stream", "parts": ["a", "b\nc"]}, headers={"Accept": "text/event-stream"})
    assert (got.body, got.headers["content-type"]) == (b"data: a\n\ndata: b\ndata: c\n\n", "text/event-stream")
    assert call(shared, b"one", headers={"Accept": "text/event-stream"}).body == b"data: one\n\n"


def test_a_stream_that_fails_is_not_complete(shared: GatewayHost) -> None:
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        call(shared, {"do": "stream", "parts": ["a"], "fails": True})
    got = call(shared, {"do": "stream", "parts": ["a"], "fails": True}, headers={"Accept": "text/event-stream"})
    assert got.body.startswith(b"data: a\n\nevent: error\ndata: {")


def test_a_stream_over_http_1_0_ends_with_the_connection(shared: GatewayHost) -> None:
    body = b'{"do": "stream", "parts": ["a", "b"]}'
    got = raw(shared, f"POST {PATH} HTTP/1.0\r\nAuthorization: Bearer alice\r\nContent-Length: {len(body)}\r\n\r\n"
              .encode() + body)
    assert got.endswith(b"\r\n\r\nab")


# Who may use what -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("headers", "status", "code"), [
    ({"Authorization": "Bearer alice"}, 200, ""), ({"X-Auth-Token": "alice"}, 200, ""),
    ({"X-User-Token": "service"}, 200, ""), ({"Authorization": "Bearer root"}, 200, ""),
    ({}, 401, "inference.token"), ({"Authorization": "Basic YTpi"}, 401, "inference.token"),
    ({"Authorization": "Bearer old"}, 401, "inference.token"),
    ({"Authorization": "Bearer reader"}, 403, "inference.scope"),
    ({"Authorization": "Bearer bob"}, 404, "inference.no_model"),
    ({"X-Dlicmd-User": "alice"}, 401, "inference.token"),
    ({"Authorization": "Bearer wrong", "X-Auth-Token": "alice"}, 200, ""),
    ({"Authorization": "Bearer reader", "X-Auth-Token": "wrong", "X-User-Token": "alice"}, 200, ""),
    ({"Authorization": "Bearer old", "X-Auth-Token": "reader"}, 403, "inference.scope"),
])
def test_a_token_decides(shared: GatewayHost, headers: dict[str, str], status: int, code: str) -> None:
    got = call(shared, token=None, headers=headers)
    assert (got.status, got.code) == (status, code)
    if code:
        assert got.value == {"error": {"code": code, "message": got.value["msg"]}, "msg": got.value["msg"]}


def test_a_slash_at_the_end_of_the_path_changes_nothing(shared: GatewayHost) -> None:
    assert call(shared, path=PATH + "/").status == 200
    assert call(shared, path=PATH + "//").code == "inference.no_model"


def test_a_model_of_another_user_looks_like_one_that_does_not_exist(shared: GatewayHost) -> None:
    foreign, unknown = call(shared, token="bob"), call(shared, token="bob", path="/dlim/v1/inference/n")

    def shape(got: Got, name: str) -> tuple[Any, ...]:
        return got.status, got.code, got.body.replace(f" {name} ".encode(), b""), sorted(got.headers)

    assert shape(foreign, "m") == shape(unknown, "n")


def test_a_model_may_be_shared(host: GatewayHost) -> None:
    host.serve(model("m", shared=("bob",)), model("all", revision(7), shared=True))
    host.kernel()
    assert call(host, token="bob").status == 200
    assert call(host, token="service").status == 200
    host.serve(model("m", shared=True), carol=Token("carol", False, FAR))
    eventually(lambda: call(host, token="carol").status == 200, "carol may use it")


def test_the_server_vouches_for_users_on_its_socket(shared: GatewayHost) -> None:
    def status(user: str, admin: str = "") -> int:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(shared.config["local"])
            link.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Dlicmd-User: {user}\r\nX-Dlicmd-Admin: {admin}\r\n"
                         "Content-Length: 2\r\nConnection: close\r\n\r\nab".encode())
            return int(link.makefile("rb").read().split()[1])

    assert (status("alice"), status("bob"), status("bob", "1")) == (200, 404, 200)


def test_the_server_is_asked_about_an_unknown_token(host: GatewayHost) -> None:
    host.serve(model())
    host.kernel()
    asked: list[str] = []

    def answer(found: str) -> None:
        asked.append(found)
        if found == digest("new"):
            host.serve(model(), new=Token("alice", False, FAR))
        else:
            host.control.send({"op": "no_token", "digest": found})

    host.control.on_token = lambda found: threading.Thread(target=answer, args=(found,), daemon=True).start()
    both = {"Authorization": "Bearer wrong", "X-Auth-Token": "new"}
    assert call(host, b"x" * 3_000_000, token=None, headers=both).status == 200
    assert (call(host, token="bad").status, call(host, token="bad").status) == (401, 401)
    assert asked == [digest("wrong"), digest("new"), digest("bad")]


def test_an_unknown_token_without_a_server_is_refused_for_now(host: GatewayHost) -> None:
    host.serve(model())
    host.kernel()
    host.control.close()

    def refused() -> bool:
        got = call(host, token="new")
        return (got.status, got.code, got.headers.get("retry-after")) == (503, "inference.no_server", "1")

    eventually(refused, "the gateway notices that no server is there")
    assert call(host).status == 200


# Limits -----------------------------------------------------------------------------------------------------------


def test_a_gateway_without_a_state_waits_for_the_server(host: GatewayHost) -> None:
    got = call(host, path="/healthz", method="GET", token=None)
    assert (got.status, got.value) == (503, {"status": "starting"})
    host.serve(model())
    assert call(host, path="/healthz", method="GET", token=None).value == {"status": "ok"}


def test_a_model_that_is_stopped_refuses(host: GatewayHost) -> None:
    from dataclasses import replace
    host.serve(replace(model(), revisions=()))
    got = call(host)
    assert (got.status, got.code, bool(got.headers["retry-after"])) == (503, "inference.stopped", True)


def test_a_request_waits_for_the_first_kernel(host: GatewayHost) -> None:
    host.serve(model())
    found: list[Got] = []
    thread = threading.Thread(target=lambda: found.append(call(host)))
    thread.start()
    load = host.wait(lambda load: load.queued == 1)
    assert (load.kernels, load.arrived) == ((), 1)
    host.kernel()
    thread.join()
    assert found[0].status == 200


def test_a_full_queue_refuses(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(queue_size=1)))
    thread = threading.Thread(target=call, args=(host,))
    thread.start()
    host.wait(lambda load: load.queued == 1)
    got = call(host)
    assert (got.status, got.code, int(got.headers["retry-after"]) > 0) == (429, "inference.queue_full", True)
    host.kernel()
    thread.join()


def test_a_token_has_a_rate(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(token_rate=0.001)))
    host.kernel()
    assert call(host).status == 200
    got = call(host)
    assert (got.status, got.code) == (429, "inference.rate")
    assert call(host, token="root").status == 200


def test_a_body_above_the_limit_is_refused(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(body_bytes=1000)))
    host.kernel()
    assert call(host, b"x" * 1000).status == 200
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\n".encode()
    assert raw(host, head + b"Content-Length: 1001\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    chunk = b"1f4\r\n" + b"x" * 500 + b"\r\n"
    assert raw(host, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3).startswith(b"HTTP/1.1 413 ")


def test_a_kernel_that_does_not_answer_is_killed(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(execution_timeout=0.5, pipe_size=2)))
    process = host.kernel_process()
    host.wait(lambda load: any(one.ready for one in load.kernels))
    got = call(host, {"do": "silent"})
    assert (got.status, got.code) == (504, "inference.timeout")
    assert process.wait(60) == -9
    host.kernel_process(2)
    eventually(lambda: call(host).status == 200, "another kernel answers")


def test_a_client_bounds_its_own_wait(shared: GatewayHost) -> None:
    got = call(shared, {"do": "sleep", "seconds": 1}, headers={"Request-Timeout": "0.2"})
    assert (got.status, got.code) == (504, "inference.timeout")
    assert call(shared, headers={"Request-Timeout": "soon"}).code == "inference.request"


def test_a_failed_task_is_an_error_of_its_request_alone(shared: GatewayHost) -> None:
    got = call(shared, {"do": "fail"})
    assert (got.status, got.code, got.value["msg"]) == (500, "inference.kernel_failed", "it does not work")
    assert call(shared).status == 200


def test_a_client_that_goes_cancels_its_task(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(pipe_size=2)))
    kernel = host.kernel()
    body = json.dumps({"do": "silent"}).encode()
    with socket.create_connection(("127.0.0.1", host.port)) as link:
        link.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\nContent-Length: {len(body)}"
                     "\r\n\r\n".encode() + body)
        eventually(lambda: kernel.tasks, "the kernel has the task")
    assert eventually(lambda: kernel.cancelled, "the kernel is told") == [kernel.tasks[0].id]


def test_a_kernel_names_the_status_of_a_failed_task(shared: GatewayHost) -> None:
    for given, status, code in ((422, 422, "inference.input"), (503, 503, "inference.kernel_failed"),
                                (200, 500, "inference.kernel_failed")):
        got = call(shared, {"do": "fail", "meta": {"status": given}})
        assert (got.status, got.code) == (status, code)


def test_a_task_without_an_answer_times_out_and_its_kernel_goes_on(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(execution_timeout=1.0)))
    kernel = host.kernel()
    found: list[Got] = []
    thread = threading.Thread(target=lambda: found.append(call(host, {"do": "swallow"})))
    thread.start()
    eventually(lambda: kernel.tasks, "the kernel has the task")
    assert call(host).status == 200
    thread.join()
    assert (found[0].status, found[0].code, kernel.welcomes) == (504, "inference.timeout", 1)
    host.wait(lambda load: load.running == 0 and load.kernels)


def test_a_kernel_that_leaves_gets_bye_and_no_further_requests(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(parallel_size=3, retry=False)))
    kernel = host.kernel()
    assert kernel.welcome == {"parallel_size": 3, "retry": False, "unanswered": True}
    assert call(host, {"do": "leave"}).body == b"bye"
    eventually(lambda: kernel.byes == 1, "the gateway says BYE")
    eventually(lambda: call(host).status == 200, "the kernel is back")


# Kernels and revisions --------------------------------------------------------------------------------------------


def test_a_kernel_with_a_wrong_key_is_refused(host: GatewayHost) -> None:
    host.serve(model())
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(host.config["kernels"])
        from local_backend.inference.kernel import frames
        link.sendall(frames.json_frame(frames.HELLO, {"version": 1, "key": "wrong", "kernel": 1}))
        assert link.recv(100) == b""
    assert host.load().kernels == ()


@pytest.mark.parametrize("data", [b"\0\0\0\0", b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x03\x01{}",
                                  b"\0\0\0\x02\x03x"])
def test_bytes_that_are_no_frames_end_a_kernels_connection(shared: GatewayHost, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(shared.config["kernels"])
        link.sendall(data)
        try:
            assert link.recv(100) == b""
        except ConnectionResetError:
            pass
    assert call(shared).status == 200


def test_a_kernel_that_sends_garbage_loses_its_request_to_another(host: GatewayHost) -> None:
    host.serve(model())
    host.kernel(1)
    assert call(host, {"do": "garbage"}).code == "inference.kernel_died"
    eventually(lambda: call(host).status == 200, "the kernel is back")


def test_the_load_counts(host: GatewayHost) -> None:
    host.serve(model(limits=RequestLimits(batch_size=4)))
    host.kernel()
    for _ in range(3):
        call(host, b"12345")
    call(host, {"do": "fail"})
    load = host.wait(lambda load: load.finished == 3 and load.failed == 1)
    (kernel,) = load.kernels
    assert (load.arrived, load.running, load.batch_tasks) == (4, 0, 1.0)
    assert (kernel.number, kernel.finished, kernel.failed, kernel.ready) == (1, 3, 1, True)
    assert load.transferred > 30
    call(host, b"1")
    host.wait(lambda load: load.finished == 4)
    known = host.control.load
    assert known is not None and len(known.latencies["m"]) == len(LATENCY_BOUNDS) + 1
    assert sum(known.latencies["m"]) in (4, 5)  # the load may come just before the last answer has ended


def test_weights_split_requests_between_revisions(host: GatewayHost) -> None:
    host.serve(model("m", revision(1, weight=3), revision(2, weight=1)))
    host.kernel(1)
    host.kernel(2, 2)
    keys = [call(host, {"do": "who"}).value[0] for _ in range(8)]
    assert (keys.count("key-1"), keys.count("key-2")) == (6, 2)


def test_metrics_and_the_access_log_show_requests(folder: Any) -> None:
    with GatewayHost(folder, access_log=str(folder / "access.log")) as host:
        host.serve(model())
        host.kernel()
        call(host)
        call(host, token="bob")
        page = call(host, method="GET", path="/metrics").body.decode()
        assert 'dlim_requests_total{model="m",code="200"} 1' in page
        assert 'dlim_request_seconds_count{model="m"} 1' in page
        assert 'model="m"' not in call(host, method="GET", path="/metrics", token="bob").body.decode()
        assert call(host, method="GET", path="/metrics", token=None).status == 401
        log = folder / "access.log"
        lines = eventually(lambda: len(log.read_text().splitlines()) >= 2 and log.read_text().splitlines(), "the log")
        assert lines[0].split()[1:7] == ["alice", '"POST', f'{PATH}"', "200", "5", "5"]
