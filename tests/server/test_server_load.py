"""Bulk work of one user beside the calls of others, and the quotas of calls, streams, uploads and submissions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import TOKEN, Answer, Live, multipart, quoted
from starlette.responses import Response
from support import PATIENCE, eventually

from dlicmd.contract import wire
from dlicmd.contract.states import KILLED, PENDING
from local_backend.api import bodies, bulk, lines, logs, results, route
from local_backend.errors import Busy
from local_backend.runtime.paths import ExecPaths, worker_task
from local_backend.services import load
from local_backend.services.access import Caller
from local_backend.services.execs import ExecService
from local_backend.services.load import MOST_WAITING, FairThreads
from local_backend.settings import Quotas, Settings
from local_backend.store.execs import ExecRow

ARGS = "--exec-start PyTorch --model-main main.py"


class Gate:
    """Packs results only after `open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self._open, pack = threading.Semaphore(0), threading.Event(), results.pack

        def waiting(*given: Any) -> Any:
            self.entered.release()
            assert self._open.wait(PATIENCE)
            return pack(*given)

        monkeypatch.setattr(results, "pack", waiting)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def team(start: Callable[..., Live]) -> Live:
    return start(embedded=False)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(MOST_WAITING + 20) as threads:
        yield threads


def with_result(live: Live, token: str = TOKEN) -> str:
    exec_id = live.submitted(token=token)
    live.settings.paths.job(exec_id, live.row(exec_id).creator).model.joinpath("weights").write_bytes(b"w" * 1000)
    return exec_id


def test_one_user_with_many_results_delays_no_other_user(
    team: Live, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = team.add_user("bob")
    hers, his = with_result(team), with_result(team, bob)
    gate = Gate(monkeypatch)

    def fetched(exec_id: str, token: str) -> Answer:
        return team.call("GET", f"/execs/{exec_id}/result", token=token)

    first = [pool.submit(fetched, hers, TOKEN) for _ in range(MOST_WAITING + 1)]
    assert gate.entered.acquire(timeout=PATIENCE)
    waiting = team.services.load
    eventually(lambda: waiting.waiting("alice") == MOST_WAITING, "her calls wait")

    refused = fetched(hers, TOKEN)
    assert refused.error == (429, "load.busy") and int(refused.headers["retry-after"]) > 0
    assert team.call("GET", "/execs", token=bob).status == 200 and team.call("GET", "/status").status == 200
    second = pool.submit(fetched, his, bob)
    assert gate.entered.acquire(timeout=PATIENCE), "his result is packed beside hers"
    gate.open()
    assert {one.result(PATIENCE).status for one in (*first, second)} == {200}


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 3))
def test_users_take_turns(users: list[str], workers: int) -> None:
    order: list[str] = []

    async def scenario() -> None:
        turns = FairThreads(load.PACKING, workers, workers)
        gate = threading.Event()
        held = [asyncio.ensure_future(turns.run("holder", gate.wait)) for _ in range(workers)]
        await asyncio.sleep(0)
        calls = [asyncio.ensure_future(turns.run(user, lambda u=user: order.append(u))) for user in users]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*held, *calls)

    asyncio.run(scenario())
    assert sorted(order) == sorted(users)
    if workers == 1:
        for user in set(users):
            # Between two calls of one user, each other user who waits has one call.
            places = [at for at, one in enumerate(order) if one == user]
            for before, after in pairwise(places):
                between = order[before + 1:after]
                assert set(order[after:]) - {user} <= set(between), order
                assert len(between) == len(set(between)), order


def test_a_call_that_is_cancelled_leaves_its_turn() -> None:
    async def scenario() -> None:
        turns, gate = FairThreads(load.PACKING, 1, 1), threading.Event()
        holder = asyncio.ensure_future(turns.run("a", gate.wait))
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(turns.run("b", lambda: pytest.fail("its client has gone")))
        last = asyncio.ensure_future(turns.run("b", lambda: "done"))
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        await holder
        assert await last == "done"

    asyncio.run(scenario())


def test_a_full_queue_refuses_only_its_own_user() -> None:
    async def scenario() -> None:
        turns, gate = FairThreads(load.PACKING, 1, 1), threading.Event()
        calls = [asyncio.ensure_future(turns.run("a", gate.wait)) for _ in range(MOST_WAITING + 1)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await turns.run("a", gate.wait)
        calls.append(asyncio.ensure_future(turns.run("b", gate.wait)))
        gate.set()
        await asyncio.gather(*calls)

    asyncio.run(scenario())


def test_open_streams_of_one_user_delay_no_other_user(
    team: Live, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = team.add_user("bob")
    hers, his = team.submitted(), team.submitted(token=bob)
    entered, opened, content = threading.Semaphore(0), threading.Event(), logs.content

    def waiting(paths: ExecPaths, *given: Any) -> Iterator[bytes]:
        if paths.exec_id == hers:
            entered.release()
            assert opened.wait(PATIENCE)
        yield from content(paths, *given)

    monkeypatch.setattr(logs, "content", waiting)
    first = [pool.submit(team.call, "GET", f"/execs/{hers}/log") for _ in range(20)]
    assert entered.acquire(timeout=PATIENCE)
    second = pool.submit(team.call, "GET", f"/execs/{his}/log", token=bob)
    try:
        assert second.result(PATIENCE / 2).status == 200
    finally:
        opened.set()
    assert {one.result(PATIENCE).status for one in first} == {200}


def test_small_calls_of_one_user_delay_no_other_user(
    team: Live, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, hers = team.add_user("bob"), team.submitted()
    entered, opened, find = [], threading.Event(), ExecService.find

    def waiting(self: ExecService, caller: Caller, exec_id: str) -> ExecRow:
        if caller.name == "alice":
            entered.append(exec_id)
            assert opened.wait(PATIENCE)
        return find(self, caller, exec_id)

    monkeypatch.setattr(ExecService, "find", waiting)
    calls = [pool.submit(team.call, "GET", f"/execs/{hers}") for _ in range(42)]
    try:
        eventually(lambda: team.services.load.waiting("alice") == 40, "her other calls wait for their turn")
        assert len(entered) == 2
        assert pool.submit(team.call, "GET", "/execs", token=bob).result(PATIENCE / 2).status == 200
        assert pool.submit(team.call, "GET", wire.METRICS, token=bob, base="").result(PATIENCE / 2).status == 200
    finally:
        opened.set()
    assert {one.result(PATIENCE).status for one in calls} == {200} and len(entered) == 42


def test_too_many_small_calls_of_one_user_are_refused(team: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    bob = team.add_user("bob")
    monkeypatch.setattr(team.services.load._calls, "_most", 0)
    refused = team.call("GET", "/execs", token=bob)
    assert refused.error == (429, "load.busy") and int(refused.headers["retry-after"]) > 0


def test_calls_of_one_user_that_come_too_fast_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pace = load.CallPace(4)
    assert [pace.wait("a") for _ in range(7)] == [0, 0, 0, 0, 0.25, 0.5, 0.75]
    assert pace.wait("b") == 0
    now[0] += 0.75
    assert pace.wait("a") == 0.25
    waits = [pace.wait("a") for _ in range(39)]
    assert waits == sorted(waits) and waits[-1] == 10
    with pytest.raises(Busy):
        pace.wait("a")
    now[0] += 11
    assert pace.wait("a") == 0 and pace.wait("b") == 0


def test_a_user_beyond_the_rate_is_refused_alone(start: Callable[..., Live]) -> None:
    team = start(embedded=False, quotas=Quotas.for_a_team())
    bob, paced = team.add_user("bob"), team.services.load._pace
    assert paced is not None and team.call("GET", "/execs", token=bob).status == 200
    paced._due["bob"] = time.monotonic() + 3600
    for path in ("/execs", "/status"):
        refused = team.call("GET", path, token=bob)
        assert refused.error == (429, "load.busy") and int(refused.headers["retry-after"]) > 0
    assert team.call("GET", "/execs").status == 200
    assert team.call("GET", "/execs", token="wrong").status == 401


def test_a_revoked_token_takes_no_calls_of_its_user(start: Callable[..., Live]) -> None:
    team = start(embedded=False, quotas=Quotas.for_a_team())
    bob = team.add_user("bob")
    body = b'{"name": "n", "scope": "read", "expiresIn": 86400}'
    made = team.call("POST", "/tokens", body, {"Content-Type": "application/json"}, token=bob)
    own, paced = made.json()["token"], team.services.load._pace
    assert team.call("GET", "/execs", token=own).status == 200 and paced is not None
    assert team.call("DELETE", "/tokens/n", token=bob).status == 204
    assert team.call("GET", "/execs", token=own).status == 401
    paced._due["bob"] = time.monotonic() + 3600
    assert team.call("GET", "/execs", token=own).status == 401


def test_a_large_answer_is_sent_in_pieces(team: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        team.submitted()
    whole, taken, pieces = team.call("GET", "/execs"), [], team.services.load.pieces
    monkeypatch.setattr(bulk, "_LARGE", 1000)
    monkeypatch.setattr(bulk, "_PIECE", 300)

    def noted(user: str, chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
        found = list(chunks)
        taken.append((user, found))
        return pieces(user, iter(found))

    monkeypatch.setattr(team.services.load, "pieces", noted)
    assert team.call("GET", "/execs").body == whole.body and len(whole.body) > 1000
    assert [user for user, _ in taken] == ["alice"]
    assert b"".join(taken[0][1]) == whole.body and max(map(len, taken[0][1])) == 300


def test_calls_that_wait_for_news_or_bodies_take_no_turn(team: Live, pool: ThreadPoolExecutor) -> None:
    exec_id = team.submitted()
    cursor = team.call("GET", f"/execs/{exec_id}/follow").json()["cursor"]
    streams = team.services.load.users.streams
    eventually(lambda: not streams, "the first stream has ended")
    calls = [pool.submit(team.call, "GET", f"/execs/{exec_id}/follow?wait=30&cursor={cursor}") for _ in range(5)]
    eventually(lambda: streams["alice"] == 5, "the streams are open")
    with contextlib.ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(uploading(team))
            raw = opened.enter_context(socket.create_connection(("127.0.0.1", team.port), timeout=PATIENCE))
            raw.sendall(f"POST {wire.CONNECTIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                        "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{".encode())
        eventually(lambda: team.services.load.users.uploads["alice"] == 5, "the uploads have begun")
        assert pool.submit(team.call, "GET", f"/execs/{exec_id}").result(PATIENCE / 2).status == 200
    team.move(exec_id, PENDING, KILLED)
    assert {one.result(PATIENCE).status for one in calls} == {200}


def test_a_search_without_matches_gives_other_users_their_turn(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    exec_id, taken = live.submitted(), []
    file = live.paths(exec_id).capture(worker_task(1), "stdout", False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"some line\n" * 100_000)

    def noted(_load: object, pieces: Iterator[bytes], **_more: object) -> Response:
        taken.append(list(pieces))
        return Response()

    monkeypatch.setattr(lines, "Streamed", noted)
    monkeypatch.setattr(lines, "_TURN", 0.0)
    for query in ("grep=other", "grep=other&tail=5"):
        assert live.call("GET", f"/execs/{exec_id}/lines?{query}").status == 200
    assert all(len(pieces) > 10 and not any(pieces) for pieces in taken) and len(taken) == 2


@pytest.mark.parametrize("path", ["/scheduler/applications/stop", "/v1/authorize"])
def test_a_large_body_is_read_beside_the_calls_of_others(
    team: Live, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    bob, body, is_open = team.add_user("bob"), b'{"ids": []}'.ljust(30_000), path == "/v1/authorize"
    entered, opened, read = threading.Semaphore(0), threading.Event(), route.strict_json.read

    def waiting(given: bytes) -> Any:
        if len(given) == len(body):
            entered.release()
            assert opened.wait(PATIENCE)
        return read(given)

    monkeypatch.setattr(route.strict_json, "read", waiting)
    target = {"token": None, "base": ""} if is_open else {}
    sent = ("POST", path, body, {"Content-Type": "application/json"})
    calls = [pool.submit(team.call, *sent, **target) for _ in range(MOST_WAITING + 2)]
    assert entered.acquire(timeout=PATIENCE)
    try:
        assert pool.submit(team.call, "GET", "/execs", token=bob).result(PATIENCE / 2).status == 200
    finally:
        opened.set()
    found = sorted(one.result(PATIENCE).error for one in calls)
    read_ones = (400, "body.value") if is_open else (200, "")
    assert found == [read_ones] * (MOST_WAITING + 1) + [(429, "load.busy")]


def test_a_thread_that_works_for_a_cancelled_call_keeps_its_turn() -> None:
    async def scenario() -> None:
        turns, gate, done = FairThreads(load.PACKING, 1, 1), threading.Event(), []
        gone = asyncio.ensure_future(turns.run("a", gate.wait))
        await asyncio.sleep(0)
        gone.cancel()
        calls = [asyncio.ensure_future(turns.run(user, lambda u=user: done.append(u))) for user in "aab"]
        await asyncio.sleep(0)
        assert turns.waiting("a") == 2 and turns.waiting("b") == 1
        gate.set()
        await asyncio.gather(*calls)
        assert sorted(done) == ["a", "a", "b"]

    asyncio.run(scenario())


def test_the_limit_of_open_streams_holds_until_they_end(start: Callable[..., Live], pool: ThreadPoolExecutor) -> None:
    live = start(embedded=False, quotas=Quotas(streams=1))
    exec_id, bob = live.submitted(), live.add_user("bob")
    cursor = live.call("GET", f"/execs/{exec_id}/follow").json()["cursor"]
    streams = live.services.load.users.streams
    eventually(lambda: not streams["alice"], "the first stream has ended")  # a little after its answer
    following = pool.submit(live.call, "GET", f"/execs/{exec_id}/follow?wait=30&cursor={cursor}")
    eventually(lambda: streams["alice"] == 1, "the stream is open")
    for path in ("follow", "log", "files", "curves", "result"):
        refused = live.call("GET", f"/execs/{exec_id}/{path}")
        assert refused.error == (429, "quota.streams") and int(refused.headers["retry-after"]) > 0, path
    assert live.call("GET", f"/execs/{exec_id}").status == 200
    assert live.call("GET", f"/execs/{exec_id}/log", token=bob).error == (400, "exec.not_found")
    live.move(exec_id, PENDING, KILLED)
    assert following.result(PATIENCE).status == 200
    eventually(lambda: not streams["alice"], "the stream has ended")
    assert live.call("GET", f"/execs/{exec_id}/log").status == 200


def test_a_stream_counts_until_its_last_byte(start: Callable[..., Live]) -> None:
    live = start(embedded=False, quotas=Quotas(streams=1))
    exec_id = live.submitted()
    live.paths(exec_id).logs.mkdir(parents=True, exist_ok=True)
    (live.paths(exec_id).model / "big").write_bytes(bytes(32 << 20))
    target = f"{wire.EXECS}/{exec_id}/files/content?path=model/big"
    with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) as raw:
        raw.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert raw.recv(12) == b"HTTP/1.1 200"
        assert live.call("GET", f"/execs/{exec_id}/log").error == (429, "quota.streams")
    eventually(lambda: not live.services.load.users.streams, "the client has gone")
    assert live.call("GET", f"/execs/{exec_id}/log").status == 200


def test_the_limit_of_submissions_within_a_minute_holds(start: Callable[..., Live]) -> None:
    live = start(embedded=False, quotas=Quotas(submissions_per_minute=2))
    bob = live.add_user("bob")
    live.submitted(), live.submitted()
    refused = live.submit(ARGS, {"main.py": b""})
    assert refused.error == (429, "quota.rate") and 1 <= int(refused.headers["retry-after"]) <= 60
    live.submitted(token=bob)


def test_a_verification_counts_as_a_submission(start: Callable[..., Live]) -> None:
    live = start(embedded=False, quotas=Quotas(submissions_per_minute=2))
    exec_id = live.submitted("--exec-start edtPyTorch --model-main main.py --msd-attr verify=5")
    assert live.call("POST", f"/execs/{exec_id}/verify").status == 200
    refused = live.call("POST", f"/execs/{exec_id}/verify")
    assert refused.error == (429, "quota.rate") and int(refused.headers["retry-after"]) > 0


def uploading(live: Live) -> socket.socket:
    """Return a connection on which half of an upload has arrived."""
    raw = socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE)
    head = f"POST {wire.EXECS}?args={quoted(ARGS)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n"
    head += f"Authorization: Bearer {TOKEN}\r\nContent-Type: multipart/form-data; boundary=XbX\r\n\r\n"
    raw.sendall(head.encode() + multipart([("file", "main.py", b"x" * 1000)])[0][:500])
    return raw


def test_the_limit_of_simultaneous_uploads_holds(start: Callable[..., Live]) -> None:
    live = start(embedded=False, quotas=Quotas(uploads=1))
    with uploading(live):
        eventually(lambda: live.services.load.users.uploads["alice"] == 1, "the upload has begun")
        refused = live.submit(ARGS, {"main.py": b""})
        assert refused.error == (429, "quota.uploads") and int(refused.headers["retry-after"]) > 0
    eventually(lambda: not live.services.load.users.uploads, "the client has gone")
    live.submitted()


def received(raw: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    found = b""
    while piece := raw.recv(65536):
        found += piece
    return found


def test_an_upload_that_takes_too_long_is_cut(start: Callable[..., Live]) -> None:
    live = start(embedded=False, quotas=Quotas(upload_seconds=1))
    with uploading(live) as raw:
        answer = received(raw)
    assert answer.startswith(b"HTTP/1.1 408") and b"quota.upload_seconds" in answer
    eventually(live.nothing_left, "no file of the upload is left")


def test_a_body_that_arrives_too_slowly_is_cut(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE", 0.1)
    monkeypatch.setattr(bodies, "LEAST_RATE", 1 << 30)
    with uploading(live) as raw:
        answer = received(raw)
    assert answer.startswith(b"HTTP/1.1 408") and b"http.too_slow" in answer
    eventually(live.nothing_left, "no file of the upload is left")
    with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE) as raw:
        raw.sendall(f"POST {wire.CONNECTIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                    "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{".encode())
        answer = received(raw)
    assert answer.startswith(b"HTTP/1.1 408") and b"http.too_slow" in answer


def test_a_server_for_several_users_has_quotas_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path))
    assert Settings.from_environment(embedded=True).quotas == Quotas()
    found = Settings.from_environment(["user_streams=7"], host="127.0.0.1").quotas
    assert found == Quotas.for_a_team(streams=7) and found.streams == 7 and found.submissions_per_minute == 300
