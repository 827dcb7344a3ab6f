"""Errors about the data that a submission names, and their texts for users: causes in words, without secrets."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator

from dlicmd.contract.secret import MASK

#: Suffixes of exception names, of any library, with their meaning; the first match counts.
_MEANINGS = (
    (("NameResolutionError",), "its host name is unknown"),
    (("TooManyRedirects",), "too many redirects"),
    (("IncompleteRead", "ChunkedEncodingError", "ProtocolError", "RemoteDisconnected", "ConnectionResetError",
      "BrokenPipeError", "ConnectionAbortedError"), "the connection broke"),
    (("Timeout", "TimeoutError"), "no data arrived in time"),
)
#: Shorter secrets are parts of many words: the rest of a masked word would reveal them. As a separate word such a text
#: may be the secret, or an `a` that any reader can fill in.
_SHORTEST = 4
UNTOLD = ("error details are hidden because they may contain a secret of the connection; to see them, use a secret of "
          f"at least {_SHORTEST} characters")


class DataError(ValueError):
    """The data of a job cannot be used. A retry does not help.

    The text says which data and why.
    """


class KindUnusable(DataError):
    """A kind of connection that another package adds cannot be used.

    The text says which package and why.
    """


class DataUnavailable(DataError):
    """The data is not available now: its server is down, or the connection broke. A retry may help.

    The server retries for `DLI_DATA_PATIENCE` seconds.
    """


class DataChanged(DataUnavailable):
    """A file changed after it was listed. Bytes that were read before the change are useless.

    The server lists and fetches the file again.
    """


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


def without(text: object, secrets: Iterable[str]) -> str:
    """Return a text with the secrets masked; return UNTOLD if a short secret stands in it as a word."""
    found = str(text)
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            found = found.replace(secret, MASK)
        elif re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", found):
            return UNTOLD
    return found
