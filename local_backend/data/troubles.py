"""Reasons why a server did not answer, in words for users."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

#: Suffixes of exception names, of any library, with their meaning; the first match counts.
_MEANINGS = (
    (("NameResolutionError",), "its host name is unknown"),
    (("TooManyRedirects",), "too many redirects"),
    (("IncompleteRead", "ChunkedEncodingError", "ProtocolError", "RemoteDisconnected", "ConnectionResetError",
      "BrokenPipeError", "ConnectionAbortedError"), "the connection broke"),
    (("Timeout", "TimeoutError"), "no data arrived in time"),
)


def in_words(problem: BaseException) -> str:
    """Return one short sentence about an exception of a library, by its cause. The sentence has no address: an address
    may have secrets in its query."""
    causes = list(_causes(problem))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not valid: {cause.verify_message or 'no trusted authority signed it'}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or 'the handshake failed'}"
        if isinstance(cause, socket.gaierror):
            return "its host name is unknown"
        if isinstance(cause, ConnectionRefusedError):
            return "it refuses connections"
    for ends, meaning in _MEANINGS:
        if any(type(cause).__name__.endswith(ends) for cause in causes):
            return meaning
    told = next((cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
    return told.lower() if told else "the connection failed"


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """Yield the exception and all exceptions that libraries wrap in it: as a cause, an argument or a `reason`."""
    seen: list[BaseException] = []
    waiting = [problem]
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.append(one)
        yield one
        inside = (getattr(one, "reason", None), *one.args, one.__cause__, one.__context__)
        waiting += [found for found in inside if isinstance(found, BaseException)]
