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
        except pika.exceptions.NackError:
            raise Refused("the broker does not take it", done) from None
        except pika.exceptions.UnroutableError:
            raise Trouble("the broker has no queue for it", done) from None
        except network.AddressRefused as problem:
            raise Trouble(str(problem)) from None
        except Exception as problem:  # not all that pika raises about a connection are AMQPErrors or OSErrors
            self.close()
            raise Trouble(_reason(problem), done) from None

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
        address = network.permitted_addresses(target.host, target.port, self._loopback)[0]
        options = pika.SSLOptions(ssl.create_default_context(), target.host) if target.tls else None
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(
            host=address, port=target.port, virtual_host=target.vhost, ssl_options=options,
            credentials=pika.PlainCredentials(target.user, target.password, erase_on_connect=True),
            heartbeat=_HEARTBEAT, socket_timeout=CONNECT, stack_timeout=CONNECT, blocked_connection_timeout=CONNECT,
        ))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()


def _reason(problem: Exception) -> str:
    """One line; pika's errors often have no text, and their texts may hold credentials."""
    return getattr(problem, "strerror", None) or type(problem).__name__
