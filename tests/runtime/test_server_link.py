"""The runner's connection to the server: sockets at long paths, foreign peers, and peers that send junk or do not read.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime_support import bench
from support import PATIENCE

from dlicmd.contract.states import FINISHED
from local_backend.runtime import tree, unix_socket
from local_backend.runtime.channel import Channel
from local_backend.runtime.launch import proves_server, server_proof
from local_backend.runtime.launcher import Held
from local_backend.runtime.local_run import LocalRun
from local_backend.runtime.messages import Begun, FromRunner, Hello, Progressed, of_runner, of_server
from local_backend.runtime.paths import HomePaths
from local_backend.runtime.processes import alive, identify
from local_backend.runtime.server_link import ServerLink
from local_backend.scheduler.model import Allocation
from local_backend.scheduler.slots import cpu_slots

PROOF = "valid"
HELD = Held(0, ("cpu-0",), ("cpu-0",))
PEER = """
import socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
print(link.recv(1))
"""


class Ends:
    """A server link and the socket of its first server."""

    def __init__(self, path: Path) -> None:
        ours, theirs = socket.socketpair()
        self.path = path
        self.link = ServerLink(theirs.detach(), path, lambda proof: proof == PROOF)
        self.server = Channel(ours.detach())
        self.allocations: list[Allocation] = []
        self.link.on_allocation = self.allocations.append

    def connect(self, *messages: Hello | Allocation) -> Channel:
        """Connect another process, which sends these messages."""
        fd, _ = unix_socket.connect(self.path)
        channel = Channel(fd)
        for message in messages:
            channel.send(of_server(message))
        return channel

    def work(self) -> None:
        """Handle all pending events, as the loop of a runner does."""
        while ready := select.select([fd for fd, _, _ in self.link.sources], [], [], 0)[0]:
            for fd, handler, _ in self.link.sources:
                if fd in ready:
                    handler()
        self.link.tick()


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr(tree, "is_stranger", lambda pid: True)  # Both ends are in this process.
    found = Ends(tmp_path / "runner.sock")
    yield found
    found.link.close()
    found.server.close()


def events(messages: list[dict[str, Any]]) -> list[str]:
    return [message["event"] for message in messages]


def test_a_socket_can_have_a_path_of_any_length(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*("x" * 200 for _ in range(4)))
    folder.mkdir(parents=True)
    path = folder / "runner.sock"
    listening = unix_socket.listen(path)
    fd, peer = unix_socket.connect(path)
    accepted, other = unix_socket.accept(listening)
    assert path.is_socket() and path.stat().st_mode & 0o777 == 0o600
    assert peer == other == unix_socket.SocketPeer(os.getpid(), os.geteuid())
    os.write(fd, b"x")
    assert os.read(accepted, 9) == b"x"
    for one in (listening, fd, accepted):
        os.close(one)


def test_a_job_runs_in_a_home_with_a_very_long_path(tmp_path: Path) -> None:
    with bench(tmp_path / ("h" * 200)) as one:
        job = one.submit("import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n")
        one.wait_running(job)
        assert HELD in one.ask(job)
        (one.paths(job).code(one.row(job).workload) / "go").touch()
        assert one.wait(job).state == FINISHED


def test_a_process_of_the_job_cannot_connect_as_a_server(tmp_path: Path) -> None:
    ends = Ends(tmp_path / "runner.sock")
    ends.link.say(HELD)
    with subprocess.Popen([sys.executable, "-c", PEER, str(ends.path)], stdout=subprocess.PIPE) as peer:
        assert select.select([ends.link.sources[0][0]], [], [], PATIENCE)[0]
        ends.work()
        assert peer.communicate(timeout=PATIENCE)[0] == b"b''\n", "the process must get no data"
    assert events(ends.server.receive()) == ["held"] and ends.server.open, "the server lost its connection"
    ends.link.close()
    ends.server.close()


def test_a_new_server_gets_the_newest_state_and_replaces_the_old_one(ends: Ends) -> None:
    for step in range(3):
        ends.link.say(Progressed({"step": step}))
    ends.link.say(HELD)
    ends.server.send(of_server(Allocation(cpu_slots(2), 1)))
    new = ends.connect(Hello(PROOF))
    ends.link.sources[0][1]()  # The runner sees the new server before it reads the message of the old one.
    ends.work()
    assert ends.allocations == []
    progress, held = new.receive()
    assert progress["values"] == {"step": 2} and held["event"] == "held"
    new.send(of_server(Allocation(cpu_slots(1), 1)))
    ends.work()
    assert ends.allocations == [Allocation(cpu_slots(1), 1)]
    ends.server.receive()
    assert not ends.server.open
    new.close()


@pytest.mark.parametrize("messages", [
    [Hello("forged"), Allocation(cpu_slots(2), 1)], [Allocation(cpu_slots(2), 1)], [Allocation((), 1), Hello(PROOF)],
])
def test_a_process_without_a_proof_gives_no_slots_and_does_not_replace_the_server(
    ends: Ends, messages: list[Hello | Allocation]
) -> None:
    ends.link.say(HELD)
    other = ends.connect(*messages)
    ends.work()
    assert ends.allocations == [] and other.receive() == [] and not other.open
    assert events(ends.server.receive()) == ["held"] and ends.server.open


def test_many_connections_do_not_use_up_the_descriptors_of_a_runner(ends: Ends) -> None:
    before = len(ends.link.sources)
    others = []
    for _ in range(50):
        others.append(ends.connect())
        ends.work()
    assert len(ends.link.sources) - before < 10
    others[-8].close()  # The runner drops this connection for the next one, and sees its end in the same moment.
    others.append(ends.connect())
    ends.work()
    server = ends.connect(Hello(PROOF))
    ends.link.say(HELD)
    ends.work()
    assert events(server.receive()) == ["held"]
    for one in (server, *others):
        one.close()


def test_only_the_text_of_its_launch_proves_a_server_to_a_runner(tmp_path: Path) -> None:
    paths = HomePaths(tmp_path, tmp_path, tmp_path).job("local-1", "ada")
    assert not server_proof(paths) and not proves_server("", server_proof(paths))
    paths.state.mkdir(parents=True)
    paths.spec.write_text(json.dumps({"proof": PROOF}))
    assert proves_server(PROOF, server_proof(paths))
    for forged in ("", PROOF[1:], f"{PROOF} ", "\ud800", "local-1 1"):
        assert not proves_server(PROOF, forged)


def test_junk_closes_at_most_the_connection(ends: Ends) -> None:
    junk = b'nonsense\n[1]\n{"op":"fly"}\n{"op":"allocate","sequence":-1,"slots":[]}\n' + b"[" * 100_000 + b"\n"
    os.write(ends.server.fd, junk + json.dumps(of_server(Allocation((), 3))).encode() + b"\n")
    ends.work()
    assert ends.allocations == [Allocation((), 3)]
    written = 0
    while ends.server.open and written < 2**22:
        try:
            written += os.write(ends.server.fd, b"x" * 65536)
        except BlockingIOError:
            ends.work()
        except OSError:
            break
    assert ends.link.due is not None, "a line without an end did not close the connection"
    again = ends.connect(Hello(PROOF))
    ends.link.say(HELD)
    ends.work()
    assert events(again.receive()) == ["held"]
    again.close()


def test_news_of_slots_wakes_the_server_and_progress_does_not(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    run = LocalRun(HomePaths(tmp_path, tmp_path, tmp_path).job("local-1", "ada"), 1, server=ours.detach())
    runner = Channel(theirs.detach())

    def hears(message: FromRunner) -> bool:
        runner.send(of_runner(message))
        return run.on_ready([fd for fd in run.descriptors if fd != run._watch])

    assert hears(Begun(identify(os.getpid()))) and run.begun
    assert hears(HELD)
    assert not hears(HELD) and not hears(replace(HELD, workers=(3,)))
    assert not hears(Progressed({"step": 1}))
    assert (run.held, run.progress) == (replace(HELD, workers=(3,)), {"step": 1})
    assert hears(replace(HELD, held=()))
    runner.close()
    run.allocate(Allocation((), 1))
    assert not run.connected and run.held is None, "the failed send did not close the connection"
    assert run.descriptors == [run._watch] and run.due is not None and not run.ended
    run.close()


def test_a_runner_lives_although_no_descriptor_is_free_to_watch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    paths, me = HomePaths(tmp_path, tmp_path, tmp_path).job("local-1", "ada"), identify(os.getpid())
    with monkeypatch.context() as full:
        full.setattr(os, "pidfd_open", refuse)
        full.setattr(os, "pipe", refuse)
        run = LocalRun(paths, 1, process=me)
        assert run.begun and not run.ended and run.due is not None and not run.descriptors
        full.setattr(Path, "read_bytes", refuse)
        full.setattr("builtins.open", refuse)
        with pytest.raises(OSError, match="Too many"):
            alive(me)
        with pytest.raises(OSError, match="Too many"):
            tree.leftovers("x", None)
    run.tick()
    assert len(run.descriptors) == 1 and not run.ended
    run.close()


def test_a_server_that_does_not_read_gets_the_newest_message_later(ends: Ends) -> None:
    for step in range(20_000):
        ends.link.say(Progressed({"step": step}))
    found: list[dict[str, Any]] = []
    while not found or found[-1]["values"]["step"] != 19_999:
        messages = ends.server.receive()
        assert messages
        found += messages
        for fd, handler, waiting in ends.link.sources:
            if fd != ends.link.sources[0][0] and waiting & select.POLLOUT:
                handler()
    assert len(found) < 20_000, "the link must drop older messages while the server does not read"
