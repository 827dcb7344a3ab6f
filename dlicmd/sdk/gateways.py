"""The way of requests to models: directly to the address that a model names, in place of the server that passes them
on. Only an address on the server's own host is used, with the same scheme and the same trust."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from dlicmd.sdk.errors import ConnectionLost, Unreachable
from dlicmd.sdk.transport import Answer, Request, Transport

#: Answers after which the server is asked in place of the gateway: it may know a newer token, or a newer model.
_NOT_HERE = (401, 404)


class Gateways:
    """Connections to the addresses that models name.

    Args:
        url: Scheme and host of the server.
        opener: Function that opens a transport to a URL with the trust of the server.
    """

    def __init__(self, url: str, opener: Callable[[str], Transport]) -> None:
        self._place = _place(url)
        self._opener = opener
        #: Model → the URL of its requests; "" for a model whose requests go through the server.
        self._urls: dict[str, str] = {}
        self._ways: dict[str, Transport] = {}
        self._seen: set[str] = set()

    def is_used(self, model: str) -> bool:
        """Return whether the requests of a model may go to its own address. The first one never does: a program that
        sends only one would wait longer for the address than it gains."""
        if model in self._seen:
            return self._urls.get(model) != ""
        self._seen.add(model)
        return False

    def url_of(self, model: str) -> str | None:
        """Return the URL for a model; None if it is not known yet."""
        return self._urls.get(model)

    def learn(self, model: str, url: str) -> None:
        """Use this URL for a model, or the server if the URL is on another host."""
        self._urls[model] = url if url and _place(url) == self._place else ""

    def send(self, model: str, request: Request) -> Answer | None:
        """Return the answer of the address of a model; None if the server must be asked, because nothing was sent or
        the address does not know the token or the model. Raises ConnectionLost."""
        url = self._urls.get(model)
        if not url:
            return None
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        try:
            if origin not in self._ways:
                self._ways[origin] = self._opener(origin)
            answer = self._ways[origin].send(request._replace(target=parts.path))
            if answer.status in _NOT_HERE or not request.streamed:
                answer.hold()
        except ConnectionLost:
            self._urls.pop(model, None)  # the gateway may have another address now
            raise
        except Unreachable:
            self._urls[model] = ""
            return None
        if answer.status in _NOT_HERE:
            self._urls.pop(model, None)
            return None
        return answer

    def close(self) -> None:
        """Close all connections."""
        for way in list(self._ways.values()):
            way.close()


def _place(url: str) -> tuple[str, str]:
    """Return scheme and host of a URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme.lower(), (parts.hostname or "").lower()
    except ValueError:
        return "", ""
