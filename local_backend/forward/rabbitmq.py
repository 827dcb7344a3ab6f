"""Sends metrics to a RabbitMQ broker, one message per line, with pika (extra `rabbitmq`)."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import ssl
from collections.abc import Sequence
from typing import Any

from local_backend import network
from local_backend.forward.channel import CONNECT, RecordRefused, Trouble
from local_backend.forward.source import SourceLine
from local_backend.forward.target import Rabbit

_HEARTBEAT = 30
#: Reply code of a broker that refuses the content of a message, such as one that is too large (AMQP 0-9-1).
_CONTENT = 406
#: Exceptions of pika that only their class name describes → a text.
_SAID = {
    "ProbableAuthenticationError": "the broker refuses the user or the password",
    "ProbableAccessDeniedError": "the broker refuses the user access to this vhost",
    "ConnectionBlockedTimeout": "the broker accepts no messages now: it is short of memory or disk",
    "IncompatibleProtocolError": "the server does not speak AMQP 0-9-1, or it requires TLS (amqps://)",
    "StreamLostError": "the connection was lost",
    "AMQPConnectorStackTimeout": "the broker does not answer",
}


def is_installed() -> bool:
    """Return whether pika is installed."""
    return importlib.util.find_spec("pika") is not None


class RabbitChannel:
    """A kept connection, on which the broker confirms messages; see Channel.

    A message is the line as JSON, persistent. Its `message_id` is `execId:source:offset`, which identifies it if it
    arrives twice. A message that the broker cannot route to any queue is not lost: it is sent again later.
    """

    def __init__(self, target: Rabbit, exec_id: str, loopback: bool) -> None:
        self.name = f"{'amqps' if target.tls else 'amqp'}://{target.host}:{target.port}"
        self._target = target
        self._exec_id = exec_id
        self._loopback = loopback
        self._connection: Any = None
        self._channel: Any = None

    def send(self, lines: Sequence[SourceLine]) -> None:
        """See Channel."""
        try:
            pika = importlib.import_module("pika")
        except ImportError:
            raise Trouble("pika is not installed: pip install 'dlicmd[rabbitmq]'") from None
        # pika logs several lines per failure; the launcher log has one.
        logging.getLogger("pika").setLevel(logging.CRITICAL)
        done = 0
        try:
            if self._channel is None:
                self._open(pika)
            for line in lines:
                self._publish(pika, line)
                done += 1
        except pika.exceptions.NackError:  # never about the content: a queue is full, or its process has died
            raise Trouble("a queue of the broker does not accept the message; it may be full", done) from None
        except pika.exceptions.UnroutableError:
            raise Trouble("the broker has no queue for the message", done) from None
        except network.AddressRefused as problem:
            raise Trouble(str(problem)) from None
        except Exception as problem:  # some connection errors of pika are neither AMQPErrors nor OSErrors
            self.close()
            kind = RecordRefused if getattr(problem, "reply_code", 0) == _CONTENT else Trouble
            raise kind(_reason(problem), done) from None

    def close(self) -> None:
        """See Channel."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # a broken connection cannot be closed in order, and need not be
                return

    def _publish(self, pika: Any, line: SourceLine) -> None:
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, app_id="dlicmd",
            message_id=f"{self._exec_id}:{line.source}:{line.offset}",
            headers={"execId": self._exec_id, "source": line.source, "offset": line.offset},
        )
        self._channel.basic_publish(
            self._target.exchange, self._target.routing_key, json.dumps(line.metric).encode(), properties,
            mandatory=True,
        )

    def _open(self, pika: Any) -> None:
        target = self._target
        options = pika.SSLOptions(ssl.create_default_context(), target.host) if target.tls else None
        self._connection = pika.BlockingConnection([
            pika.ConnectionParameters(
                host=address, port=target.port, virtual_host=target.vhost, ssl_options=options,
                credentials=pika.PlainCredentials(target.user, target.password, erase_on_connect=True),
                heartbeat=_HEARTBEAT, socket_timeout=CONNECT, stack_timeout=CONNECT,
                blocked_connection_timeout=CONNECT,
            )
            for address in network.permitted_addresses(target.host, target.port, self._loopback)
        ])
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()


def _reason(problem: BaseException) -> str:
    """Return one line: the text of the broker, the text of the system, or the meaning of pika's exception class.
    Texts of pika itself may contain credentials."""
    inner = problem.args[0] if problem.args else None
    inner = getattr(inner, "exception", inner)
    if isinstance(inner, OSError):
        problem = inner
    if isinstance(problem, ssl.SSLError):
        return f"no TLS connection: {getattr(problem, 'verify_message', None) or problem.reason}"
    said = getattr(problem, "reply_text", None) or getattr(problem, "strerror", None)
    name = type(problem).__name__
    return _SAID.get(name) or (str(said) if said else name)
