"""Answers of the gateway itself: why it does not pass on the answer of a kernel."""

from __future__ import annotations

import json
import math
from typing import Any

#: Seconds that a client waits before it asks again, if the gateway cannot compute better.
SOON = 1
_LATEST = 60


class Refused(Exception):
    """The gateway answers a request with a status and a sentence, without the answer of a kernel."""

    def __init__(self, status: int, code: str, sentence: str, *, retry_after: float | None = None,
                 close: bool = False) -> None:
        """`retry_after`: seconds after which the same request may succeed. `close`: the connection cannot go on."""
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.sentence = sentence
        self.retry_after = None if retry_after is None else max(1, min(_LATEST, math.ceil(retry_after)))
        self.close = close


def no_token() -> Refused:
    """Return the refusal of a request without a valid token."""
    return Refused(401, "inference.token", "The request has no valid token. Send one in the header Authorization: "
                   "Bearer TOKEN; dlim config -s prints one")


def wrong_scope(scope: str) -> Refused:
    """Return the refusal of a token that may not send requests."""
    return Refused(403, "inference.scope", f"The scope {scope} of the token does not permit requests to models")


def no_model(name: str) -> Refused:
    """Return the refusal for a model that does not exist, or that the user may not use."""
    return Refused(404, "inference.no_model", f"The model {name} does not exist, or you may not use it")


def no_revision(name: str, number: object) -> Refused:
    """Return the refusal for a revision that the model does not have."""
    return Refused(404, "inference.no_revision", f"The model {name} serves no revision {number}")


def no_path(path: str) -> Refused:
    """Return the refusal for a path that means nothing here."""
    return Refused(404, "inference.no_path", f"The path {path} does not exist. Requests go to /dlim/v1/inference/MODEL "
                   "or /v2/models/MODEL/infer")


def wrong_method(allowed: str) -> Refused:
    """Return the refusal for a method that the path does not have."""
    return Refused(405, "inference.method", f"This path takes only {allowed}")


def stopped(name: str) -> Refused:
    """Return the refusal for a model without revisions."""
    return Refused(503, "inference.stopped", f"The model {name} is stopped. Start it: dlim model start {name}",
                   retry_after=10)


def cannot_start(name: str, why: str) -> Refused:
    """Return the refusal for a model whose kernels cannot start."""
    reason = f": {why}" if why else ""
    return Refused(503, "inference.cannot_start", f"No kernel of the model {name} can start{reason}", retry_after=10)


def not_ready(name: str, why: str) -> Refused:
    """Return the refusal of a request whose time ended before a kernel was ready."""
    reason = f": {why}" if why else ""
    return Refused(503, "inference.not_ready", f"No kernel of the model {name} was ready in time{reason}",
                   retry_after=SOON)


def no_state() -> Refused:
    """Return the refusal of a gateway that does not know any model yet."""
    return Refused(503, "inference.no_server", "The gateway has just started, and waits for the server to list the "
                   "models", retry_after=SOON)


def unknown_token() -> Refused:
    """Return the refusal of a token that only the server could examine, while the server does not answer."""
    return Refused(503, "inference.no_server", "The server does not answer, so the gateway cannot examine the token",
                   retry_after=SOON)


def full(name: str, seconds: float) -> Refused:
    """Return the refusal of a model whose queue is full. `seconds`: until it has room again."""
    return Refused(429, "inference.queue_full", f"The queue of the model {name} is full", retry_after=seconds)


def too_fast(name: str, rate: float, seconds: float) -> Refused:
    """Return the refusal of a token that sends more requests than the model permits."""
    return Refused(429, "inference.rate", f"The model {name} takes {rate:g} requests per second from a token",
                   retry_after=seconds)


def too_late(name: str, seconds: float) -> Refused:
    """Return the refusal of a request that no kernel answered in time."""
    return Refused(504, "inference.timeout", f"No kernel of the model {name} answered within {seconds:g} seconds")


def kernel_died(name: str) -> Refused:
    """Return the refusal of a request whose kernel ended before it answered."""
    return Refused(502, "inference.kernel_died", f"The kernel of the model {name} ended before it answered. Read its "
                   f"log: dlim logs {name}")


def kernel_failed(sentence: str, meta: bytes = b"") -> Refused:
    """Return the refusal of a request that the kernel could not answer. `sentence` and `meta` are those of the kernel;
    a member `status` of `meta` is the HTTP status. Below 500, the request is wrong."""
    status = read_meta(meta).get("status") if meta else None
    known = status if isinstance(status, int) and 400 <= status <= 599 else 500
    code = "inference.input" if known < 500 else "inference.kernel_failed"
    return Refused(known, code, sentence or "The kernel failed without a message")


def read_meta(meta: bytes) -> dict[str, Any]:
    """Return the metadata of a reply; {} for what is not a JSON object."""
    try:
        found = json.loads(meta)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def too_large(most: int) -> Refused:
    """Return the refusal of a body above the limit, in bytes."""
    return Refused(413, "inference.too_large", f"The body of a request has at most {most} bytes", close=True)


def no_memory() -> Refused:
    """Return the refusal of a body while the bodies of other requests fill the gateway."""
    return Refused(503, "inference.memory", "The bodies of other requests fill the gateway", retry_after=SOON,
                   close=True)


def bad_request(sentence: str, *, close: bool = False) -> Refused:
    """Return the refusal of a malformed request."""
    return Refused(400, "inference.request", sentence, close=close)


def internal() -> Refused:
    """Return the refusal of a request at which the gateway failed."""
    return Refused(500, "inference.internal", "The gateway failed. Its log has the reason")


def ending() -> Refused:
    """Return the refusal of a request that waits while the gateway ends."""
    return Refused(503, "inference.ending", "The gateway ends", retry_after=SOON, close=True)
