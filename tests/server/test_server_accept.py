"""The Accept header: logs as text or as one JSON string, errors as text or as JSON."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

import pytest
from live_server import Answer, Live, route_table
from sqlalchemy.exc import InterfaceError
from support import PATIENCE

from dlicmd.contract import wire
from local_backend.api.bodies import LARGEST
from local_backend.services.execs import ExecService

ONLY_JSON = {"Accept": "application/json"}
JSON, TEXT = "application/json", "text/plain; charset=utf-8"


@pytest.fixture(scope="module")
def logged(shared: Live) -> tuple[Live, str]:
    """A server, and an exec with output."""
    exec_id = shared.submitted()
    file = shared.paths(exec_id).capture("task12n-1", "stdout", False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('grüße "x"\n', encoding="utf-8")
    return shared, exec_id


@pytest.mark.parametrize("accept", [
    "application/json", "application/json, text/plain;q=0.5", "application/json, text/plain, */*",
    "text/plain, application/json", "text/plain;q=0.4,application/json;q=0.5", "Application/JSON ; Q=0.001",
    'text/html;x="a,b;q=1";q=0.3, application/json;charset=utf-8;q="0.9"', "application/json, text/plain;q=high",
    "application/json;q=1.000, */*;q=1.0",
])
def test_a_log_is_a_json_string_if_no_type_counts_more(logged: tuple[Live, str], accept: str) -> None:
    live, exec_id = logged
    answer = live.call("GET", f"/execs/{exec_id}/log", headers={"Accept": accept})
    assert answer.headers["content-type"] == JSON and answer.json() == 'grüße "x"\n'


@pytest.mark.parametrize("accept", [
    None, "", "*/*", "text/plain", "text/*", "application/xml", "text/plain, application/json;q=0.9",
    "*/*, application/json;q=0.9", "application/json;q=0", "application/json;q=0, text/plain;q=0",
    "application/json;q=nan", "application/json;q=2", "application/json;q=-1", "application/json;q", "json", ",;=,",
    "application/json text/plain", '"application/json',
])
def test_every_other_log_is_text(logged: tuple[Live, str], accept: str | None) -> None:
    live, exec_id = logged
    answer = live.call("GET", f"/execs/{exec_id}/log", headers={} if accept is None else {"Accept": accept})
    assert answer.headers["content-type"] == TEXT and answer.text == 'grüße "x"\n'


def test_several_accept_headers_are_one_list(logged: tuple[Live, str]) -> None:
    live, exec_id = logged
    connection = HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE)
    try:
        connection.putrequest("GET", f"{wire.BASE}/execs/{exec_id}/log")
        for name, value in (("Authorization", f"Bearer {live.token}"), ("Accept", "application/json;q=0.5"),
                            ("Accept", "text/plain")):
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().headers["Content-Type"] == TEXT
    finally:
        connection.close()


@pytest.mark.parametrize("accept", ["application/json", "application/json;q=0.1", "application/json, text/html",
                                    "application/json, */*;q=0, text/plain;q=0"])
def test_a_client_that_accepts_only_json_gets_errors_as_json(shared: Live, accept: str) -> None:
    answer = shared.call("GET", "/execs/local-99", headers={"Accept": accept})
    assert answer.headers["content-type"] == JSON and answer.error == (400, "exec.not_found")
    assert answer.json() == {"status": 400, "code": "exec.not_found", "message": "Exec 'local-99' is not found."}


@pytest.mark.parametrize("accept", [
    None, "*/*", "text/plain", "application/json, text/plain;q=0.9", "application/json, */*;q=0.1",
    "application/json, text/*;q=0.1", "application/json;q=0", "application/json;q=x", "application/xml",
])
def test_every_other_client_gets_errors_as_text(shared: Live, accept: str | None) -> None:
    answer = shared.call("GET", "/execs/local-99", headers={} if accept is None else {"Accept": accept})
    assert answer.headers["content-type"] == TEXT and answer.error == (400, "exec.not_found")
    assert answer.text == "Error 400: Exec 'local-99' is not found.\n"


def checked(answer: Answer) -> tuple[int, str]:
    """Return status and code of an error as JSON."""
    assert answer.headers["content-type"] == JSON
    said = answer.json()
    if "msg" in said:
        assert said["error"]["message"] == said["msg"] and said["error"]["code"] == answer.error[1]
        return answer.error
    assert (said["status"], said["code"]) == answer.error and said["message"].endswith(".")
    return answer.error


def test_every_route_refuses_a_call_without_a_token_as_json(shared: Live) -> None:
    open_calls = {"/healthz", "/readyz", "/ui/tools/dlicmd.py"}
    logons = {("POST", path): (400, "body.value") for path in ("/icp4d-api/v1/authorize", "/v1/authorize", wire.OIDC)}
    logons["GET", wire.OIDC] = (404, "oidc.off")
    tried = 0
    for path, methods in route_table(shared).items():
        for method in methods - {"HEAD"} if path not in open_calls else ():
            answer = shared.call(method, path.replace("{", "").replace("}", ""), headers=ONLY_JSON, token=None, base="")
            assert checked(answer) == logons.get((method, path), (401, "auth.required")), (method, path)
            tried += 1
    assert tried > 50


@pytest.mark.parametrize(("method", "path", "body", "headers", "error"), [
    ("GET", "/nowhere", b"", {}, (404, "http.no_such_path")),
    ("PATCH", "/execs", b"", {}, (405, "http.method")),
    ("GET", "/execs?all=odd", b"", {}, (400, "query.value")),
    ("GET", "/execs", b"", {"Host": "evil.example"}, (403, "http.host")),
    ("GET", "/execs", b"", {"Origin": "https://evil.example"}, (403, "http.origin")),
    ("POST", "/connections", b"{", {"Content-Type": JSON}, (400, "body.json")),
    ("POST", "/connections", b"[]", {"Content-Type": JSON}, (400, "body.value")),
    ("POST", "/connections", b"x", {"Content-Encoding": "gzip"}, (415, "http.compressed")),
    ("POST", "/connections", b"x" * (LARGEST + 1), {"Content-Type": JSON}, (413, "http.too_large")),
    ("POST", "/execs?args=--exec-start%20Odd", b"", {}, (400, "submission.framework")),
    ("POST", "/execs", b"x", {"Content-Type": "image/png"}, (400, "submission.body")),
    ("GET", "/scheduler/applications?start=9", b"", {}, (416, "query.start")),
    ("GET", "/hypersearch/none", b"", {}, (404, "search.not_found")),
])
def test_errors_of_every_kind_are_json(  # noqa: PLR0917
    shared: Live, method: str, path: str, body: bytes, headers: dict[str, str], error: tuple[int, str]
) -> None:
    assert checked(shared.call(method, path, body, {**ONLY_JSON, **headers})) == error


@pytest.mark.parametrize(("problem", "error"), [
    (RuntimeError("a bug"), (500, "server.failed")),
    (InterfaceError("SELECT 1", {}, ConnectionError("closed")), (503, "database.unreachable")),
])
def test_failures_of_the_server_are_json(
    live: Live, monkeypatch: pytest.MonkeyPatch, problem: Exception, error: tuple[int, str]
) -> None:
    def fail(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(ExecService, "list", fail)
    assert checked(live.call("GET", "/execs", headers=ONLY_JSON)) == error
    assert live.call("GET", "/execs").text.startswith(f"Error {error[0]}: ")


def test_an_error_in_json_is_one_line_of_valid_utf_8(shared: Live) -> None:
    answer = shared.call("GET", "/execs/%ED%A0%80%0A%C3%BC", headers=ONLY_JSON)
    assert checked(answer) == (400, "exec.not_found")
    assert "\n" not in json.loads(answer.body.decode("utf-8", "strict"))["message"]
