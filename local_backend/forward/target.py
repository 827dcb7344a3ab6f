"""Targets for the metrics of an exec: the checked values of --cs-url-meta, --cs-url-bearer and --cs-rmq-meta."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})|[0-9a-fA-F:.]{2,45}")
#: Keys of a broker; other spellings of them.
_BROKER = ("host", "port", "user", "password", "vhost", "exchange", "routing_key", "ssl")
_SPELLINGS = {
    "username": "user", "virtual_host": "vhost", "routingkey": "routing_key", "queue": "routing_key", "tls": "ssl",
}
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


class BadTarget(ValueError):
    """The text names no valid target. The message says why, and contains no secret."""


@dataclass(frozen=True)
class Rest:
    """A URL that accepts metrics by POST. `bearer` is the token that is sent with them; empty for none."""

    url: str
    bearer: str = ""


@dataclass(frozen=True)
class Rabbit:
    """A RabbitMQ broker, and the address of a message there."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    exchange: str
    routing_key: str
    tls: bool


@dataclass(frozen=True)
class Targets:
    """All targets for the metrics of one exec."""

    rest: Rest | None = None
    rabbit: Rabbit | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value; it contains secrets."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Targets:
        """Build the targets from a value of `to_json`. Raises KeyError or TypeError."""
        rest, rabbit = value["rest"], value["rabbit"]
        return cls(Rest(**rest) if rest else None, Rabbit(**rabbit) if rabbit else None)


def rest(text: str, bearer: str) -> Rest:
    """Parse a target from `URL` or `url=URL`. Raises BadTarget."""
    url = text.strip().removeprefix("url=").strip()
    parts = _split(url)
    if parts.scheme not in ("http", "https"):
        raise BadTarget("the URL must begin with https:// or http://")
    if not re.fullmatch(r"[\x21-\x7e]+", url) or not _HOST.fullmatch(parts.hostname or ""):
        raise BadTarget("the URL has no host, or has characters that a URL must not have")
    if "@" in parts.netloc:
        raise BadTarget("the URL must not contain a user or password; give a token with --cs-url-bearer")
    if bearer and not re.fullmatch(r"[\x21-\x7e]{1,8192}", bearer):
        raise BadTarget("the token of --cs-url-bearer has invalid characters")
    if bearer and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise BadTarget("--cs-url-bearer would send the token unencrypted; use https://")
    return Rest(url.partition("#")[0], bearer)


def rabbit(text: str) -> Rabbit:
    """Parse a target from `amqp[s]://USER:PASSWORD@HOST:PORT/VHOST?exchange=NAME&routing_key=KEY`, or the same as
    `host=HOST,user=USER,...`. Raises BadTarget."""
    values = _from_url(text.strip()) if "://" in text else _from_pairs(text)
    host = values.get("host", "")
    if not _HOST.fullmatch(host):
        raise BadTarget("the host is missing or invalid")
    tls = values.get("ssl", "false").lower()
    if tls not in _YES + _NO:
        raise BadTarget("ssl must be true or false")
    port = values.get("port") or ("5671" if tls in _YES else "5672")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise BadTarget("the port must be a number from 1 to 65535")
    exchange, key = values.get("exchange", ""), values.get("routing_key", "")
    if not exchange and not key:
        raise BadTarget("the exchange or the queue is missing; add exchange=NAME or queue=NAME")
    if max(len(exchange.encode()), len(key.encode())) > 255:
        raise BadTarget("the name of an exchange or queue must have at most 255 bytes")
    return Rabbit(host, int(port), values.get("user", "guest"), values.get("password", "guest"),
                  values.get("vhost") or "/", exchange, key, tls in _YES)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by the host text alone (no name lookup)."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises for one that is none)
        return parts
    except ValueError:
        raise BadTarget("the host or the port is invalid; in a user or password write / : @ as %2F %3A %40") from None


def _from_url(url: str) -> dict[str, str]:
    parts = _split(url)
    if parts.scheme not in ("amqp", "amqps"):
        raise BadTarget("the URL must begin with amqps:// or amqp://")
    found = {"host": parts.hostname or "", "ssl": "true" if parts.scheme == "amqps" else "false"}
    found |= {"port": str(parts.port)} if parts.port is not None else {}
    found |= {"user": unquote(parts.username)} if parts.username else {}
    found |= {"password": unquote(parts.password)} if parts.password is not None else {}
    found |= {"vhost": unquote(parts.path[1:])} if len(parts.path) > 1 else {}
    return found | _known(parse_qsl(parts.query, keep_blank_values=True))


def _from_pairs(text: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise BadTarget("write NAME=VALUE,NAME=VALUE, or a URL; in a URL, write a comma in a password as %2C")
    return _known([(name, value) for name, _, value in pairs])


def _known(pairs: list[tuple[str, str]]) -> dict[str, str]:
    found = {}
    for name, value in pairs:
        key = name.strip().lower()
        key = _SPELLINGS.get(key, key)
        if key not in _BROKER:
            raise BadTarget(f"unknown key '{name.strip()[:40]}'; the keys are {', '.join(_BROKER)}, queue")
        found[key] = value.strip()
    return found
