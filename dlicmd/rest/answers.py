"""Checks of a server's answer: whether it is a success, why not, and whether it has the expected form."""

from __future__ import annotations

import json
import re
from typing import Any

from dlicmd import hints
from dlicmd.errors import Denied, DlicmdError, ServerError
from dlicmd.rest.transport import Answer

#: HTTP code of answers about an unknown exec, among other errors.
BAD_REQUEST = 400


def checked(answer: Answer, what: str) -> Answer:
    """Return the answer if it is a success. Raises ServerError with the server's own words about `what` was
    requested."""
    if 200 <= answer.status < 300:
        return answer
    if answer.status == 401:
        raise Denied(f"Authentication error. The request was denied: {explanation(answer)}"
                     f" Log on again: {hints.logon()}", 401, answer.code)
    if answer.status == 403:
        raise Denied(f"you are not allowed to do this, or the logon has expired: {explanation(answer)}"
                     f" To log on again: {hints.logon()}", 403, answer.code)
    if 300 <= answer.status < 400:
        raise ServerError(f"the server redirects to {answer.headers.get('location', 'elsewhere')}; "
                          "name that host with --rest-host", answer.status, answer.code)
    named = f", request {answer.request_id}" if answer.status >= 500 and answer.request_id else ""
    code = "" if answer.status == BAD_REQUEST else f" (HTTP {answer.status}{named})"
    raise ServerError(f"the server refused {what}{code}: {explanation(answer)}", answer.status, answer.code)


def explanation(answer: Answer) -> str:
    """Return the text of an error's body in one line. From a JSON body, the message is taken."""
    try:
        text = answer.text().strip()
    except DlicmdError as problem:
        return str(problem)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        errors = found.get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
        said = [first.get("message"), *(found.get(key) for key in ("error", "message", "errorMessage", "detail"))]
        text = next((value for value in said if isinstance(value, str) and value), text)
    line = re.sub(r"^Error [0-9]{3}: ", "", " ".join(text.split()))
    return (line if len(line) <= 1000 else line[:1000] + " ...") or f"HTTP {answer.status} without a reason."


def an_object(answer: Answer) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises ServerError when the answer is not an object."""
    found = answer.json()
    if not isinstance(found, dict):
        raise ServerError("the server's answer is not a JSON object: is this a WMLA server?", answer.status)
    return found


def a_list(answer: Answer) -> list[dict[str, Any]]:
    """Return the JSON objects of an answer. Raises ServerError when the answer is not a list of objects."""
    found = answer.json()
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ServerError("the server's answer is not a list of JSON objects: is this a WMLA server?", answer.status)
    return found
