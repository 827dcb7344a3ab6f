"""Calls generated from the API description: every answer matches the description, and no call fails on the server."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from cases import counted
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from live_server import TOKEN, Live, settings_for
from modelling import Modelling

from dlicmd.contract import dlim, wire
from local_backend.api import inference_forward
from local_backend.runtime.resizing import Resized

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")
checks = pytest.importorskip("schemathesis.checks")
checks.load_all_checks()
#: The checks of an answer. The other checks require that every text is a valid id, or that no text is refused.
HELD = {"not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
        "response_headers_conformance"}
OTHERS = [check for check in checks.CHECKS.get_all() if check.__name__ not in HELD]
#: Valid values of parameters, so that not every call ends at an unknown id.
KNOWN = {
    "exec_id": ["local-1", "local-2", "local-3"], "app_id": ["local-1", "local-3"], "number": ["1", "2"],
    "log": ["stdout", "stderr", "launcherlog"], "name": ["local/training", "training", "local", "saved"],
    "m": ["ping", "pong"], "r": ["dlipy3", "mine"],
}
#: Valid values of headers: keys are reused with other submissions, and results are requested from an offset.
HEADERS = {"Idempotency-Key": ["a", '"b"'], "Range": ["bytes=0-", "bytes=1-", "bytes=99999-"]}
ARGS = ["--exec-start PyTorch --user-cmd -- true", "--exec-start PyTorch --user-cmd -- false"]
#: No gateway runs, so the answer to requests for started models is 503.
REFUSING = [*OTHERS, *(check for check in checks.CHECKS.get_all() if check.__name__ == "not_a_server_error")]
_REQUESTS = (dlim.INFERENCE + "/{m}", "/edimodels/{m}/inference")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inference_forward, "_PATIENCE", 0.1)  # no gateway comes
        yield from serving(tmp_path_factory)


def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Run a server with execs, models and a runtime."""
    running = Live(settings_for(tmp_path_factory.mktemp("fuzz") / "home"))
    for args in ("PyTorch --model-main main.py", "distPyTorch --numWorker 2 --model-main main.py",
                 "edtPyTorch --numWorker 2 --model-main main.py"):
        exec_id = running.submitted(f"--exec-start {args}")
        (running.paths(exec_id).model / "weights").write_bytes(b"w" * 100)
    running.run_on("local-2", "cpu-0", "cpu-1")
    running.run_on("local-3", "cpu-0")
    running.supervisor.resized = Resized(1, 2)
    models = Modelling(running)
    for name in KNOWN["m"]:
        models.deploy(name)
    assert models.call("POST", "/deployment/runtime", {"name": "mine"}).status == 200
    yield running
    running.close()


def fuzz(live: Live, cases: int) -> Counter[int]:
    """Call each operation several times, and return how often each status was the answer.

    An operation that takes parameters or a body is called as often as all others together, and at least once.
    """
    schema: Any = schemathesis.openapi.from_dict(live.call("GET", "/openapi.json", base="").json())
    url = f"http://127.0.0.1:{live.port}"
    found: Counter[int] = Counter()
    with requests.Session() as session:
        session.trust_env = False  # looking for proxies and .netrc takes longer than a call
        operations = [item.ok() for item in schema.get_all_operations()]
        each = -(-cases // sum(bool(list(operation.iter_parameters()) or operation.body) for operation in operations))
        for operation in sorted(operations, key=lambda operation: operation.method.lower() == "delete"):
            settled = settings(max_examples=each, database=None, phases=[Phase.generate], derandomize=each < 100,
                               deadline=None, suppress_health_check=list(HealthCheck))
            ask = partial(call, session, url, REFUSING if operation.path.endswith(_REQUESTS) else OTHERS, found)
            settled(given(case=operation.as_strategy(), data=st.data())(named(ask)))()
    return found


def named(ask: Any) -> Any:
    """Wrap a function so that hypothesis can call it."""

    def test(case: Any, data: st.DataObject) -> None:
        ask(case, data)

    return test


def call(  # noqa: PLR0917
    session: requests.Session, url: str, left_out: list[Any], found: Counter[int], case: Any, data: st.DataObject
) -> None:
    """Send one request, and check the answer."""
    for name in case.path_parameters or {}:
        if name in KNOWN and data.draw(st.booleans()):
            case.path_parameters[name] = data.draw(st.sampled_from(KNOWN[name]))
    taken = {header.name for header in case.operation.headers}
    for name in taken & set(HEADERS):
        if data.draw(st.booleans()):
            case.headers = {**(case.headers or {}), name: data.draw(st.sampled_from(HEADERS[name]))}
    if "Idempotency-Key" in taken and data.draw(st.booleans()):
        case.query = {**(case.query or {}), "args": data.draw(st.sampled_from(ARGS))}
    if "wait" in (case.query or {}):
        case.query["wait"] = data.draw(st.sampled_from(["0", "-1", "x", "1.5"]))
    answer = case.call(session=session, base_url=url, headers={"Authorization": f"Bearer {TOKEN}"})
    found[answer.status_code] += 1
    case.validate_response(answer, excluded_checks=left_out)
    if answer.status_code >= 400:
        check_error(case, answer)


def check_error(case: Any, answer: Any) -> None:
    """Check the form of an error: a line of text, or JSON for clients of models."""
    assert "Traceback" not in answer.text
    if case.operation.path.startswith(f"{dlim.BASE}/"):
        told = answer.json()
        assert set(told) == {"error", "msg"}, (case, answer.text)
        code = answer.headers[wire.ERROR_CODE.lower()][0]
        assert told["error"] == {"code": code, "message": told["msg"]}, (case, told)
        assert told["msg"].endswith(".")
    else:
        assert answer.text.startswith(f"Error {answer.status_code}: "), (case, answer.text)
        assert answer.text.endswith(".\n")


def outside(live: Live) -> set[Path]:
    """Return all files beside the home of the server."""
    return set(live.settings.home.parent.iterdir()) - {live.settings.home}


@pytest.mark.integration
@counted("calls of the API")
def test_every_answer_matches_the_description(live: Live, cases: int, caplog: pytest.LogCaptureFixture) -> None:
    found = fuzz(live, cases)
    assert sum(found.values()) >= cases
    assert found[200] > 50 and found[400] > 50, "expected both valid and invalid calls"
    # Other tests of this process may log errors during garbage collection; these are not errors of the server.
    told = [record for record in caplog.records if record.name.partition(".")[0] in ("local_backend", "uvicorn")]
    assert [record for record in told if record.levelno >= logging.ERROR] == []
    assert not outside(live)
    assert live.call("GET", "/conf").status == 200
