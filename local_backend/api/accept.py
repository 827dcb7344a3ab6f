"""The Accept header of a call (RFC 9110, section 12.5.1): the media types that a client accepts, and their weights."""

from __future__ import annotations

from urllib.request import parse_http_list

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers

#: Media types of answers: JSON, text, and errors as JSON (RFC 9457).
JSON, TEXT, PROBLEM = "application/json", "text/plain", "application/problem+json"


def prefers_json(headers: Headers) -> bool:
    """Return whether JSON is among the accepted types with the highest weight."""
    accepted = _accepted(headers)
    return JSON in accepted and accepted[JSON] == max(accepted.values())


def error_type(headers: Headers) -> str:
    """Return the media type of an error. Clients that accept JSON but no text get JSON, all others get text. A client
    that names PROBLEM gets that."""
    accepted = _accepted(headers)
    if PROBLEM in accepted:
        return PROBLEM
    return JSON if JSON in accepted and accepted.keys().isdisjoint({TEXT, "text/*", "*/*"}) else TEXT


def _accepted(headers: Headers) -> dict[str, float]:
    """Return the weight of each accepted media type, above 0 and at most 1. Types are in lower case, without
    parameters. Types with a malformed weight are left out."""
    found = {}
    for one in parse_http_list(", ".join(headers.getlist("accept"))):
        name, parameters = parse_options_header(one)
        weight = _weight(parameters.get(b"q", b"1"))
        if weight > 0:
            found[name.decode("latin-1").lower()] = weight
    return found


def _weight(text: bytes) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 < weight <= 1 else 0.0
