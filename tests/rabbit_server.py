"""A real RabbitMQ broker for tests, where one is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import trustme
from support import PATIENCE, eventually

USER, PASSWORD = "metrics", "br0ker-pw"
#: Where a package may put its programs; what is on PATH at Debian runs for one user alone.
_FOLDERS = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/local/opt/rabbitmq/sbin")


class NotThere(Exception):
    """There is no RabbitMQ here; the text says what is missing."""


@dataclass
class Rabbit:
    """A broker on loopback, with a folder of its own: what it holds is there again when it has been killed."""

    server: Path
    folder: Path
    port: int
    tls_port: int
    authority: Path
    environment: dict[str, str]
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start, and wait until it takes a client."""
        with (self.folder / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [self.server], env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=said,
                stderr=said, start_new_session=True,
            )
        eventually(self._answers, "RabbitMQ starts")

    def kill(self) -> None:
        """As by a crash: all of its processes, at once."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait(PATIENCE)

    def control(self, *words: str) -> None:
        """Run `rabbitmqctl`."""
        done = subprocess.run(
            [self.server.with_name("rabbitmqctl"), *words], env=self.environment, cwd=self.folder, capture_output=True,
            text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def connect(self) -> pika.BlockingConnection:
        """A connection of the one who may do everything."""
        credentials = pika.PlainCredentials(USER, PASSWORD)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, credentials=credentials))

    def declare(self, queue: str, exchange: str = "", key: str = "", **arguments: Any) -> None:
        """A durable queue, bound to an exchange when one is named."""
        with self.connect() as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True, arguments=arguments)
            if exchange:
                channel.exchange_declare(exchange, "topic", durable=True)
                channel.queue_bind(queue, exchange, key)

    def take(self, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
        """All that is in a queue now, which is empty then."""
        found = []
        with self.connect() as connection:
            channel = connection.channel()
            while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append((message[1], message[2]))
        return found

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self.folder / "said").read_text()
        try:
            # Asked this way first: a client of pika's is much work, and would be in the way of what it waits for.
            socket.create_connection(("127.0.0.1", self.port), PATIENCE).close()
            self.connect().close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True


def _server() -> Path:
    """The program that starts a broker as whoever calls it. Raises NotThere."""
    for folder in _FOLDERS:
        if (Path(folder) / "rabbitmq-server").exists():
            return Path(folder) / "rabbitmq-server"
    raise NotThere("there is no rabbitmq-server: none of " + ", ".join(_FOLDERS) + " has it")


def _free_ports(count: int) -> list[int]:
    kept = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in kept]
    for one in kept:
        one.close()
    return ports


@contextmanager
def brokering() -> Iterator[Rabbit]:
    """A broker with an empty store, gone afterwards; its certificate is one of `authority`. Raises NotThere."""
    server, names = _server(), shutil.which("epmd")
    if names is None:
        raise NotThere("there is no epmd, which finds nodes of Erlang by their names")
    folder = Path(tempfile.mkdtemp(prefix="mq-"))
    port, tls_port, distribution, names_port = _free_ports(4)
    authority, certificate = folder / "authority.pem", folder / "certificate.pem"
    made = trustme.CA()
    made.cert_pem.write_to_path(str(authority))
    made.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nlisteners.ssl.1 = 127.0.0.1:{tls_port}\n"
        f"ssl_options.certfile = {certificate}\nssl_options.keyfile = {certificate}\n"
        f"default_user = {USER}\ndefault_pass = {PASSWORD}\n"
        "ssl_options.verify = verify_none\ndisk_free_limit.absolute = 1MB\nmax_message_size = 100000\n"
    )
    (folder / "plugins").write_text("[].\n")
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_NODENAME": "test@localhost", "RABBITMQ_BASE": str(folder),
        "RABBITMQ_DIST_PORT": str(distribution), "RABBITMQ_MNESIA_BASE": str(folder / "store"),
        "RABBITMQ_LOG_BASE": str(folder / "log"), "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"), "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        # Its schedulers are not to wait by computing.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS":
            "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}",
    }
    # One of its own, in the foreground: the one that a node starts when there is none would outlive it.
    resolver = subprocess.Popen([names, "-address", "127.0.0.1", "-port", str(names_port)], env=environment)
    broker = Rabbit(server, folder, port, tls_port, authority, environment)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        resolver.kill()
        resolver.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)
