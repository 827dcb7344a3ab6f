"""Metrics as messages of a RabbitMQ broker, one each, by pika (extra `rabbitmq`)."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import ssl
from collections.abc import Sequence
from typing import Any

from local_backend import network
from local_backend.forward.channel import CONNECT, Refused, Trouble
from local_backend.forward.source import Line
from local_backend.forward.target import Rabbit

_HEARTBEAT = 30
#: The reply code of a broker that does not like a message as it is, such as one that is too large (AMQP 0-9-1).
_CONTENT = 406
#: What pika calls by a name alone.
_SAID = {
    "ProbableAuthenticationError": "it refuses the user or the password",
    "ProbableAccessDeniedError": "it refuses the user this vhost",
    "ConnectionBlockedTimeout": "it takes no messages now: it is short of memory or disk",
    "IncompatibleProtocolError": "it speaks no AMQP 0-9-1, or wants TLS (amqps://)",
    "StreamLostError": "the connection broke off",
    "AMQPConnectorStackTimeout": "it does not answer",
}


def is_installed() -> bool:
    """Whether there is pika."""
    return importlib.util.find_spec("pika") is not None


class RabbitChannel:
    """A connection that is kept, its messages confirmed by the broker; see Channel.

    A message is the line as JSON, persistent. Its `message_id` is `execId:source:offset`, which tells it from all
    others, should it come twice. One that the broker cannot route to any queue is not lost: it is sent again later.
    """

    def __init__(self, target: Rabbit, exec_id: str, loopback: bool) -> None:
        self.name = f"{'amqps' if target.tls else 'amqp'}://{target.host}:{target.port}"
        self._target = target
        self._exec_id = exec_id
        self._loopback = loopback
        self._connection: Any = None
        self._channel: Any = None

    def send(self, lines: Sequence[Line]) -> None:
        """See Channel."""
        try:
            pika = importlib.import_module("pika")
        except ImportError:
            raise Trouble("pika is not installed: pip install 'dlicmd[rabbitmq]'") from None
        logging.getLogger("pika").setLevel(logging.CRITICAL)  # each failure in several lines; the launcher log has one
        done = 0
        try:
            if self._channel is None:
                self._open(pika)
            for line in lines:
                self._publish(pika, line)
                done += 1
        except pika.exceptions.NackError:  # never about what is in it: a queue that is full, or whose process has died
            raise Trouble("a queue of the broker does not take it, which may be full", done) from None
        except pika.exceptions.UnroutableError:
            raise Trouble("the broker has no queue for it", done) from None
        except network.AddressRefused as problem:
            raise Trouble(str(problem)) from None
        except Exception as problem:  # not all that pika raises about a connection are AMQPErrors or OSErrors
            self.close()
            kind = Refused if getattr(problem, "reply_code", 0) == _CONTENT else Trouble
            raise kind(_reason(problem), done) from None

    def close(self) -> None:
        """See Channel."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # a broken connection cannot be closed in order, and need not be
                return

    def _publish(self, pika: Any, line: Line) -> None:
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
    """One line: what the broker says, what the system says, or what pika means by the class of it. pika's own texts may
    hold credentials."""
    inner = problem.args[0] if problem.args else None
    inner = getattr(inner, "exception", inner)
    if isinstance(inner, OSError):
        problem = inner
    if isinstance(problem, ssl.SSLError):
        return f"no TLS connection: {getattr(problem, 'verify_message', None) or problem.reason}"
    said = getattr(problem, "reply_text", None) or getattr(problem, "strerror", None)
    name = type(problem).__name__
    return _SAID.get(name) or (str(said) if said else name)
