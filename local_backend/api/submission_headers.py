"""The headers of a submission: `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header), `Prefer` (RFC 7240)."""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from dlicmd.contract import wire
from local_backend.errors import Invalid

#: A string of a structured header field (RFC 9651). Bare words are accepted, too, because many clients send them.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\]){1,255})"')
_BARE = re.compile(r"[!#-~]{1,255}")


def key_of(headers: Headers) -> str | None:
    """Return the key of a call, None if it has none. Raises Invalid (`submission.key`) for a malformed key."""
    given = headers.getlist(wire.KEY_HEADER)
    if not given:
        return None
    text = given[0].strip()
    quoted = _QUOTED.fullmatch(text)
    if len(given) > 1 or not (quoted or _BARE.fullmatch(text)):
        raise Invalid(
            "submission.key",
            f'Invalid {wire.KEY_HEADER}; send one key of 1 to 255 printable ASCII characters, for example "a-uuid"',
        )
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text
    if len(key) > 255:
        raise Invalid("submission.key", f"{wire.KEY_HEADER}: the key is longer than 255 characters")
    return key


def is_strict(headers: Headers) -> bool:
    """Return whether the client wants a refusal of what the server cannot run. Clients of the recorded server do not
    say so."""
    return _prefers(headers, wire.STRICT)


def wants_details(headers: Headers) -> bool:
    """Return whether the client accepts execs whose values are not all scalars."""
    return _prefers(headers, wire.DETAILS)


def _prefers(headers: Headers, what: str) -> bool:
    wanted = (one.partition(";")[0] for text in headers.getlist(wire.PREFER) for one in text.split(","))
    return any(re.sub(r"[\s\"]", "", one).lower() == what for one in wanted)
