"""Error codes: in a header of every error, and in JSON for clients that request it."""

from __future__ import annotations

import json
import logging

import pytest
from live_server import Live
from support import eventually

from local_backend import logs

PROBLEM = "application/problem+json"


@pytest.mark.parametrize(("method", "path", "body", "status", "code"), [
    ("GET", "/execs/local-9", None, 400, "exec.not_found"),
    ("GET", "/execs?state=odd", None, 400, "query.state"),
    ("GET", "/execs?all=odd", None, 400, "query.value"),
    ("GET", "/nowhere", None, 404, "http.no_such_path"),
    ("PATCH", "/execs", None, 405, "http.method"),
    ("POST", "/execs?args=--exec-start%20Odd", None, 400, "submission.framework"),
    ("POST", "/execs/local-9/deploy", None, 400, "exec.not_found"),
    ("PUT", "/resplans/resplan/a/b/c", {"weight": -1}, 400, "plan.invalid"),
    ("GET", "/resplans/resplan/none", None, 404, "plan.not_found"),
    ("POST", "/users", [], 400, "user.invalid"),
    ("DELETE", "/users/nobody", None, 404, "user.not_found"),
    ("DELETE", "/connections/none", None, 404, "connection.not_found"),
    ("GET", "/hypersearch/none", None, 404, "search.not_found"),
])
def test_every_error_has_a_code(  # noqa: PLR0917
    live: Live, method: str, path: str, body: object, status: int, code: str
) -> None:
    content = b"" if body is None else json.dumps(body).encode()
    plain = live.call(method, path, content)
    assert plain.error == (status, code)
    assert plain.headers["content-type"].startswith("text/plain") and plain.text.startswith(f"Error {status}: ")
    asked = live.call(method, path, content, {"Accept": PROBLEM})
    assert asked.status == status and asked.headers["content-type"] == PROBLEM
    assert asked.json() == {"status": status, "code": code, "detail": plain.text.partition(": ")[2].strip()}


def test_a_call_without_token_or_with_a_foreign_host_has_a_code(live: Live) -> None:
    answer = live.call("GET", "/execs", token=None)
    assert answer.error == (401, "auth.required")
    assert "www-authenticate" in answer.headers
    foreign = live.call("GET", "/execs", headers={"Host": "evil.example"})
    assert foreign.error == (403, "http.host")


def test_the_log_of_the_server_contains_the_code(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "local_backend.api.observe")
    seen: list[dict[str, str]] = []
    log = logging.getLogger("local_backend.api.observe")

    def spy(_record: logging.LogRecord) -> bool:
        seen.append(logs.fields())
        return True

    log.addFilter(spy)
    try:
        live.call("DELETE", "/execs/local-9")
        # The server writes the line after it sends the answer.
        found = eventually(lambda: [fields for fields in seen if "code" in fields], "the call is logged")
    finally:
        log.removeFilter(spy)
    assert found[0]["code"] == "exec.not_found"
