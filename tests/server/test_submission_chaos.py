"""A submission creates exactly one exec despite faults of the network."""

from __future__ import annotations

import io
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_proxy import KILL, KINDS, LATE, PASS, SILENT, STATUS, ChaosProxy, Fault
from live_server import TOKEN, Live, settings_for
from sqlalchemy import select
from user import User

from dlicmd import Client
from dlicmd.sdk import exec_calls, retry, transport
from dlicmd.sdk.errors import Unreachable
from dlicmd.sdk.transport import FilePart, Multipart
from local_backend.store.schema import execs

pytestmark = pytest.mark.integration

PROGRAM = b"print('" + bytes(range(65, 91)) * 20 + b"')\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("chaos") / "home"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda _count: 0.0)
    monkeypatch.setattr(retry, "_retry_after", lambda _text: 0.0)
    # After a connection that breaks without a response, the client checks whether the server wants TLS.
    monkeypatch.setattr(transport, "speaks_tls", lambda _host, _port: False)


def submit(port: int, name: str, retries: int = retry.MOST_RETRIES) -> str:
    """Submit through this port and return the id of the exec."""
    with Client("127.0.0.1", port, http=True, token=TOKEN, retries=retries) as caller:
        body = Multipart([FilePart("file", "main.py", io.BytesIO(PROGRAM), len(PROGRAM))])
        return str(caller.start_exec(f"--exec-start PyTorch --model-main main.py --appName {name}", body)["id"])


def made(live: Live, name: str) -> list[str]:
    query = select(execs.c.id).where(execs.c.app_name == name)
    return list(live.database.read(lambda c: list(c.execute(query).scalars())))


def exactly_one(live: Live, seed: int) -> None:
    chance = random.Random(seed)
    # The first connection asks for the configuration. It may fail as well, but a read is not repeated after a 500.
    spared = seed % 2
    kinds = [chance.choice(KINDS if spared else KINDS[:-len(STATUS)]) for _ in range(chance.randint(1, 4))]
    schedule = [Fault(PASS)] * spared + [Fault(kind, chance.randrange(2**16)) for kind in kinds]
    with ChaosProxy(live.port, schedule) as proxy:
        found = submit(proxy.port, f"chaos-{seed}")
        proxy.settle()
        assert made(live, f"chaos-{seed}") == [found], schedule


def test_random_schedules_create_one_exec_each(server: Live) -> None:
    for seed in range(60):
        exactly_one(server, seed)


@pytest.mark.slow
def test_740_more_random_schedules_create_one_exec_each(server: Live) -> None:
    for seed in range(60, 800):
        exactly_one(server, seed)


def test_every_kind_of_fault_creates_one_exec(server: Live) -> None:
    """The call for the configuration passes first, so that the fault meets the submission."""
    for kind in KINDS:
        for at in (7, 300) if kind not in (*STATUS, LATE) else (0, 1):
            name = f"{kind}-{at}".replace(" ", "-")
            with ChaosProxy(server.port, [Fault(PASS), Fault(kind, at)]) as proxy:
                found = submit(proxy.port, name)
                assert proxy.connections > 2
                proxy.settle()
                assert made(server, name) == [found]


def test_a_submission_without_a_response_creates_one_exec(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_calls, "SUBMIT_TIMEOUT", 1.0)
    with ChaosProxy(server.port, [Fault(PASS), Fault(SILENT)]) as proxy:
        found = submit(proxy.port, "silent")
        assert proxy.connections > 2 and made(server, "silent") == [found]


def test_a_server_killed_before_its_response_runs_the_program_once(tmp_path: Path) -> None:
    """The next server knows the key, because the key was stored with the exec."""
    user = User(tmp_path / "home")
    assert user.run("--exec-get-all").code == 0
    file = user.home / "backend.json"
    known = json.loads(file.read_text())
    pid, port = known["pid"], int(known["url"].rpartition(":")[2])
    with ChaosProxy(port, [Fault(PASS), Fault(KILL)], lambda: os.kill(pid, signal.SIGKILL)) as proxy:
        file.write_text(json.dumps(known | {"url": f"http://127.0.0.1:{proxy.port}"}))
        done = user.run("--exec-start", "PyTorch", "--user-cmd", "--wait", "-o", "json", "--", "true")
        assert proxy.connections >= 2
    try:
        assert done.code == 0 and "POST /execs/" in done.err, done
        [only] = json.loads(user.run("--exec-get-all", "-o", "json").out)
        assert (only["id"], only["state"]) == (done.json["id"], "FINISHED")
    finally:
        user.backend("stop", "--jobs")


def test_a_submission_to_a_server_without_keys_is_not_repeated(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "extensions", lambda _self: frozenset())
    for kind in ("cut answer", "reset answer", LATE):
        with ChaosProxy(server.port, [Fault(kind, 300)]) as proxy:
            with pytest.raises(Unreachable):
                submit(proxy.port, f"without-{kind}")
            assert proxy.connections == 1
