"""Kernels, servers and gateways that end while requests arrive: each request gets its own answer, exactly once."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme
from calls import Got, call
from gateway_host import ROOT, GatewayHost, model, revision
from load import Load
from support import eventually, examples

from local_backend.inference.control import RequestLimits
from local_backend.inference.gateway.config import listen_tcp, listen_unix
from local_backend.inference.gateway_process import GatewayHandle, GatewayPlace, GatewayReady
from local_backend.inference.gateway_session import GatewaySession
from local_backend.inference.kernel import frames
from local_backend.runtime.paths import HomePaths

pytestmark = pytest.mark.integration

#: Starts a gateway as a server does, writes its process id, and waits.
SERVER = """
import sys, time
from pathlib import Path
from local_backend.inference.gateway_process import GatewayHandle, GatewayPlace
from local_backend.runtime.paths import HomePaths

place = GatewayPlace("127.0.0.1", die_with_server=sys.argv[2] == "1")
handle = GatewayHandle(HomePaths(*[Path(sys.argv[1])] * 3), place)
handle.start()
while (link := handle.connect()) is None:
    time.sleep(0.02)
print(link.pid, flush=True)
time.sleep(600)
"""


def ready(host: GatewayHost, count: int, number: int = 1) -> None:
    """Wait until a revision has this many ready kernels."""
    host.wait(lambda load: sum(one.ready for one in load.kernels) >= count, number)


def test_kernels_killed_under_load_lose_no_request(host: GatewayHost) -> None:
    """A request may meet two dying kernels in a row; then it is refused, not lost."""
    host.serve(model(limits=RequestLimits(batch_size=4, pipe_size=2)))
    kernels = {number: host.kernel_process(number) for number in (1, 2, 3)}
    ready(host, 3)
    with Load(host) as load:
        for turn in range(examples(100)):
            number = turn % 3 + 1
            kernels[number].kill()
            kernels[number].wait()
            load.advance(20)
            kernels[number] = host.kernel_process(number)
            ready(host, 3)
    assert (load.wrong, set(load.counts) - {502}) == ([], {200})
    assert load.counts[502] == 0


def test_a_request_whose_kernels_die_twice_is_refused(host: GatewayHost) -> None:
    host.serve(model())
    found: list[Got] = []
    thread = threading.Thread(target=lambda: found.append(call(host, {"do": "die"})))
    thread.start()
    for number in (1, 2):
        assert host.kernel_process(number).wait(60) == 9
    thread.join()
    assert (found[0].status, found[0].code) == (502, "inference.kernel_died")


def test_revisions_change_under_load_without_a_failed_request(host: GatewayHost) -> None:
    host.serve(model("m", revision(1)))
    first = host.kernel(1, 1)
    with Load(host) as load:
        load.advance()
        for turn in range(1, 5):
            host.serve(model("m", revision(turn), revision(turn + 1, "starting")))
            second = host.kernel(1, turn + 1)
            load.advance()
            host.serve(model("m", revision(turn, "draining"), revision(turn + 1)))
            host.wait(lambda found: not found.queued and not found.running, turn)
            host.serve(model("m", revision(turn + 1)))
            first.close()
            first = second
            load.advance()
    assert (load.wrong, set(load.counts)) == ([], {200})


def test_the_death_of_the_server_changes_nothing(host: GatewayHost) -> None:
    host.serve(model())
    host.kernel()
    with Load(host) as load:
        load.advance()
        host.control.close()
        load.advance()
        host.connect()
        assert host.control.about["pid"] == host.process.pid
        host.serve(model("m", shared=True))
        load.advance()
    assert set(load.counts) == {200}


@pytest.mark.parametrize("message", [b"{}\n", b"nonsense\n", b"[]\n", b'{"op": "state"}\n', b'{"op": "later"}\n',
                                     b'{"op": "state", "version": 1, "models": 5, "tokens": {}}\n',
                                     b'{"op": "hand_over"}\n', b'{"op": "taken"}\n', b'{"op": "no_token"}\n'])
def test_a_message_that_the_gateway_does_not_know_changes_nothing(shared: GatewayHost, message: bytes) -> None:
    if b"taken" in message:
        return
    shared.control.link.sendall(message)
    assert call(shared).status == 200


@pytest.mark.parametrize("keep", [True, False])
def test_a_new_gateway_takes_over_under_load(host: GatewayHost, keep: bool) -> None:
    host.serve(model(limits=RequestLimits(batch_size=2)))
    for number in (1, 2):
        host.kernel(number)
    with Load(host, keep=keep) as load:
        for _ in range(3):
            load.advance()
            old, port = host.process, host.port
            host.start_process()
            eventually(lambda: not _reconnect(host), "the new gateway is there")
            load.advance()
            assert (host.port, host.pid) == (port, host.process.pid)
            assert old.wait(120) == 0
            ready(host, 2)
    assert (load.wrong, set(load.counts)) == ([], {200})


def _reconnect(host: GatewayHost) -> bool:
    """Connect again as a server does whose connection ended; return whether it is still the old gateway."""
    host.connect()
    return host.pid != host.process.pid


def test_requests_that_wait_move_to_the_new_gateway(host: GatewayHost) -> None:
    host.serve(model())
    found: list[Got] = []
    threads = [threading.Thread(target=lambda: found.append(call(host, b"waits"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    host.wait(lambda load: load.queued == 3)
    old = host.process
    host.start_process()
    eventually(lambda: not _reconnect(host), "the new gateway is there")
    host.wait(lambda load: load.queued == 3)
    host.kernel()
    for thread in threads:
        thread.join()
    assert [(got.status, got.body, got.headers["connection"]) for got in found] == [(200, b"waits", "close")] * 3
    assert old.wait(60) == 0


def test_a_request_that_a_kernel_has_is_answered_by_the_old_gateway(host: GatewayHost) -> None:
    host.serve(model())
    kernel = host.kernel()
    found: list[Got] = []
    thread = threading.Thread(target=lambda: found.append(call(host, {"do": "sleep", "seconds": 1})))
    thread.start()
    eventually(lambda: kernel.tasks, "the kernel has the task")
    old = host.process
    host.start_process()
    thread.join()
    assert (found[0].status, len(kernel.tasks)) == (200, 1)
    assert old.wait(60) == 0
    eventually(lambda: kernel.welcomes == 2, "the kernel is with the new gateway")
    host.connect()
    assert call(host).status == 200


class OldGateway:
    """A gateway of another version: with a socket and a state that the present one does not know."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.sockets = {name: listen_unix(config[name]) for name in ("control", "kernels", "local")}
        self.sockets |= {"http": listen_tcp("127.0.0.1", 0), "later": listen_tcp("127.0.0.1", 0)}
        self.port = self.sockets["http"].getsockname()[1]
        self.reader = frames.FrameReader()

    def hand_over(self) -> None:
        """Hand the sockets over to the gateway that asks for them, and accept nothing from then on."""
        self.sockets["control"].setblocking(True)
        self.link, _ = self.sockets["control"].accept()
        assert json.loads(self.link.recv(1000)) == {"op": "take_over"}
        line = json.dumps({"op": "sockets", "names": list(self.sockets), "since": 1}).encode() + b"\n"
        socket.send_fds(self.link, [line], [one.fileno() for one in self.sockets.values()])
        self.link.sendall(json.dumps({"op": "state", "models": {"m": {"title": "m"}}}).encode() + b"\n")
        for one in self.sockets.values():
            one.close()

    def taken(self) -> bool:
        """Wait until the new gateway has taken over."""
        return bool(json.loads(self.link.recv(1000)) == {"op": "taken"})

    def ask(self, body: bytes) -> frames.Reply:
        """Pass a request on, and return its answer."""
        self.link.sendall(frames.batch([frames.KernelTask(5, body, {"model": "m", "meta": "", "way": "new"})]))
        found: list[tuple[int, bytes]] = []
        while not found:
            found = self.reader.feed(self.link.recv(65536))
        ((kind, payload),) = found
        assert kind == frames.REPLY
        return frames.reply_of(payload)


def test_a_gateway_of_another_version_hands_over(folder: Path) -> None:
    host = GatewayHost(folder)
    old = OldGateway(host.config)
    host.config["port"] = old.port
    with ExitStack() as stack:
        stack.push(host)
        host.start_process()
        old.hand_over()
        host.connect()
        assert host.port == old.port
        host.serve(model())
        assert old.taken()
        host.kernel()
        answer = old.ask(b"passed on")
        assert (answer.id, answer.body, answer.failed) == (5, b"passed on", False)
        assert call(host, b"new").body == b"new"
        old.link.close()
        host.process.terminate()
        assert host.process.wait(60) == 0
        assert not any(Path(host.config[name]).exists() for name in ("control", "kernels", "local"))


def test_a_gateway_that_is_killed_leaves_nothing_behind(host: GatewayHost) -> None:
    """A client notices at once; kernels and the server find the next gateway."""
    host.serve(model())
    host.kernel()
    with Load(host) as load:
        load.advance()
        host.process.kill()
        host.process.wait()
        host.config["port"] = host.port
        host.start_process()
        host.connect()
        host.serve(model())
        ready(host, 1)
        load.advance()
    assert load.wrong == []
    assert set(load.counts) <= {200, 503, "ConnectionRefusedError", "ConnectionResetError", "RemoteDisconnected",
                                "BrokenPipeError"}


def test_sigterm_answers_what_is_open(host: GatewayHost) -> None:
    host.serve(model())
    host.kernel()
    found: list[Got] = []
    threads = [threading.Thread(target=lambda: found.append(call(host, {"do": "sleep", "seconds": 0.5})))
               for _ in range(3)]
    for thread in threads:
        thread.start()
    host.wait(lambda load: load.arrived == 3)
    os.kill(host.process.pid, signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert [got.status for got in found] == [200] * 3
    assert host.process.wait(60) == 0


def test_sigterm_refuses_what_no_kernel_takes(folder: Path) -> None:
    with GatewayHost(folder, origin_limits={"drain_time": 0.2}) as host:
        host.serve(model())
        found: list[Got] = []
        thread = threading.Thread(target=lambda: found.append(call(host)))
        thread.start()
        host.wait(lambda load: load.queued == 1)
        host.process.terminate()
        thread.join()
        assert (found[0].status, found[0].code) == (503, "inference.ending")
        assert host.process.wait(60) == 0


def test_a_gateway_ends_with_its_server_if_it_shall(folder: Path) -> None:
    host = GatewayHost(folder, die_with_server=True)
    try:
        process = host.start_process(subprocess.PIPE)
        host.connect()
        host.serve(model())
        found: list[Got] = []
        thread = threading.Thread(target=lambda: found.append(call(host)))
        thread.start()
        host.wait(lambda load: load.queued)
        assert process.stdin is not None
        process.stdin.close()
        thread.join()
        assert (found[0].status, found[0].code) == (503, "inference.ending")
        assert process.wait(60) == 0
    finally:
        host.__exit__()


@pytest.mark.parametrize("shall_end", [True, False])
def test_a_killed_server_takes_its_gateway_along_if_it_shall(folder: Path, shall_end: bool) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(folder), str(int(shall_end))], cwd=ROOT,
                              stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    gateway = psutil.Process(int(server.stdout.readline()))
    try:
        server.kill()
        server.wait()
        if shall_end:
            eventually(lambda: not gateway.is_running() or gateway.status() == psutil.STATUS_ZOMBIE, "it ends")
        else:
            home = HomePaths(folder, folder, folder)
            eventually(GatewayHandle(home, GatewayPlace("127.0.0.1")).connect, "it goes on").close()
    finally:
        with suppress(psutil.NoSuchProcess):
            gateway.kill()


def test_connections_wait_while_a_killed_gateway_is_replaced(folder: Path) -> None:
    home = HomePaths(folder, folder, folder)
    session = GatewaySession(GatewayHandle(home, GatewayPlace("127.0.0.1")), idle=600.0)

    def follow() -> GatewayReady | None:
        session.keep(needed=True)
        session.hear(lambda tokens: {})
        session.push({}, lambda tokens: {})
        return session.ready

    first = eventually(follow, "a gateway runs")
    eventually(lambda: follow() and "http" in session.handle.sockets, "the server has its socket")
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not _lives(first.pid), "the gateway ends")
    with socket.create_connection(("127.0.0.1", first.port), timeout=100) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        second = eventually(lambda: (found := follow()) and found.pid != first.pid and found, "another gateway runs")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
    assert second.port == first.port
    session.leave(end=True)
    eventually(lambda: not _lives(second.pid), "the second one ends")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", first.port), timeout=100)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_renewed_certificate_is_served_and_an_unusable_one_is_not(folder: Path) -> None:
    authority = trustme.CA()
    pem, files = authority.cert_pem.bytes().decode(), (folder / "server.pem", folder / "key.pem")

    def issue() -> bytes:
        made = authority.issue_cert("127.0.0.1")
        made.cert_chain_pems[0].write_to_path(str(files[0]))
        made.private_key_pem.write_to_path(str(files[1]))
        return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())

    def served() -> bytes | None:
        context = ssl.create_default_context(cadata=pem)
        with socket.create_connection(("127.0.0.1", host.port)) as link, \
                context.wrap_socket(link, server_hostname="127.0.0.1") as secure:
            return secure.getpeercert(binary_form=True)

    first = issue()
    with GatewayHost(folder, certificate=str(files[0]), key=str(files[1])) as host:
        assert served() == first
        files[0].write_text("no certificate")
        eventually(lambda: "not renewed" in (folder / "gateway.log").read_text(), "the gateway tries it")
        assert served() == first
        second = issue()
        eventually(lambda: served() == second, "the new certificate is served")


def test_an_idle_gateway_ends_at_once(host: GatewayHost) -> None:
    host.serve(replace(model(), revisions=()))
    with socket.create_connection(("127.0.0.1", host.port)) as link:
        eventually(lambda: "1" in call(host, method="GET", path="/metrics").body.decode(), "the connection is there")
        host.process.terminate()
        assert link.recv(1) == b""
        assert host.process.wait(60) == 0


@pytest.mark.parametrize(("change", "word"), [
    ({"port": -1}, "port"), ({"control": None}, "control"), ({"origin_limits": {"speed": 1}}, "speed"),
    ({"certificate": "/nothing", "key": "/nothing"}, "certificate"), ({"host": "256.0.0.1"}, "listen"),
    ({"access_log": "/nothing/log"}, "open"),
])
def test_a_wrong_configuration_is_one_sentence(folder: Path, change: dict[str, object], word: str) -> None:
    import json
    import sys

    from gateway_host import ROOT
    path = folder / "config.json"
    path.write_text(json.dumps(GatewayHost(folder).config | change))
    done = subprocess.run([sys.executable, "-m", "local_backend.inference.gateway", str(path)], cwd=ROOT, timeout=60,
                          capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines()), word in done.stderr) == (1, 1, True)
