"""A real RabbitMQ broker for tests, where RabbitMQ is installed."""

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
from server_process import free_port
from support import PATIENCE, eventually

USER, PASSWORD = "metrics", "br0ker-pw"
#: Folders where packages put the programs. The program on PATH in Debian runs only for one user.
_FOLDERS = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/local/opt/rabbitmq/sbin")


class NotThere(Exception):
    """RabbitMQ is not available here; the text says what is missing."""


@dataclass
class Rabbit:
    """A broker on loopback with its own folder, so its messages survive a kill."""

    server: Path
    folder: Path
    port: int
    tls_port: int
    authority: Path
    environment: dict[str, str]
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Start the broker, and wait until it accepts a client."""
        with (self.folder / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [self.server], env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=said,
                stderr=said, start_new_session=True,
            )
        eventually(self._answers, "RabbitMQ starts")

    def kill(self) -> None:
        """Kill all processes of the broker at once, as a crash does."""
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
        """Return a connection of the administrator."""
        credentials = pika.PlainCredentials(USER, PASSWORD)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, credentials=credentials))

    def declare(self, queue: str, exchange: str = "", key: str = "", **arguments: Any) -> None:
        """Declare a durable queue, and bind it to the exchange if one is given."""
        with self.connect() as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True, arguments=arguments)
            if exchange:
                channel.exchange_declare(exchange, "topic", durable=True)
                channel.queue_bind(queue, exchange, key)

    def take(self, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
        """Remove all messages from a queue and return them."""
        found = []
        with self.connect() as connection:
            channel = connection.channel()
            while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append((message[1], message[2]))
        return found

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (self.folder / "said").read_text()
        try:
            # Try a plain socket first: a pika client is expensive and would slow the start of the broker.
            socket.create_connection(("127.0.0.1", self.port), PATIENCE).close()
            self.connect().close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True


def _server() -> Path:
    """Return the program that starts a broker as the calling user. Raises NotThere."""
    for folder in _FOLDERS:
        if (Path(folder) / "rabbitmq-server").exists():
            return Path(folder) / "rabbitmq-server"
    raise NotThere("rabbitmq-server is in none of " + ", ".join(_FOLDERS))


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return [*found]


@contextmanager
def brokering() -> Iterator[Rabbit]:
    """Run a broker with an empty store, and remove it afterwards. Raises NotThere.

    The file `authority` holds the CA that signed the certificate of the broker.
    """
    server, names = _server(), shutil.which("epmd")
    if names is None:
        raise NotThere("epmd is not on PATH; Erlang needs it to find nodes by name")
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
        # Keep its schedulers from busy waiting.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS":
            "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}",
    }
    # Run epmd in the foreground: an epmd that the node starts itself would outlive the node.
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
