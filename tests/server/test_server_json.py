"""JSON of requests: every call refuses values that cannot be stored or shown, and changes nothing.

A list is shown even if an earlier server or a program stored such a value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from live_server import Answer, Live
from sqlalchemy import update

from dlicmd.contract import strict_json, wire
from local_backend.store.schema import connections, execs

START = "--exec-start PyTorch --model-main main.py"
JSON = {"Content-Type": "application/json"}
HALF = r'"\ud800"'
FAULTS = [
    (HALF, "surrogate"), ('"\udcff"', "UTF-8"), ("[" * 101 + "]" * 101, "100"), ("[" * 900 + "]" * 900, "100"),
    ("[" * 15_000 + "]" * 15_000, "100"), ("1e999", "large"), ("9" * 5000, "large"), ("NaN", "NaN"),
    ('{"k": 1, "k": 2}', "'k'"),
]
#: Bodies with a place for a fault.
BODIES = ['{"x": %s}', '{"ids": [%s]}', '{"name": %s, "type": "s3", "values": {}}', "%s"]


def takers(live: Live) -> list[tuple[str, str]]:
    """Return method and path of every call with a JSON body, except submissions."""
    document = live.guard.app.openapi()  # type: ignore[attr-defined]
    return [(method.upper(), path) for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if "application/json" in operation.get("requestBody", {}).get("content", {}) and path != wire.EXECS]


@pytest.mark.parametrize(("fault", "said"), [
    pytest.param(*one, marks=pytest.mark.integration) if number % 2 else one for number, one in enumerate(FAULTS)])
def test_every_call_refuses_a_json_fault(shared: Live, fault: str, said: str) -> None:
    calls = takers(shared)
    assert len(calls) >= 8
    for method, path in calls:
        for body in BODIES:
            answer = shared.call(method, path.replace("{", "").replace("}", ""),
                                 (body % fault).encode(errors="surrogateescape"), JSON, base="")
            assert answer.error == (400, "body.json") and said in answer.text, (method, path, body, answer.text)
    assert shared.call("GET", "/connections").json() == []


PLACES = [
    '{"dataSource": [{"type": "fs", "x": %s}]}', '{"dataSource": [{"type": "fs", "schema": {"a": %s}}]}',
    '{"dataSource": [{"type": "fs", "location": {"paths": %s}}]}', '{"hardwareSpec": {"name": %s}}', '{"other": %s}',
]


@pytest.mark.parametrize(("fault", "said"), FAULTS)
def test_a_submission_refuses_a_json_fault(shared: Live, fault: str, said: str) -> None:
    for place in PLACES:
        data = (place % fault).encode(errors="surrogateescape")
        answer = shared.call("POST", f"/execs?args={START.replace(' ', '%20')}", data, JSON)
        code = "submission.body" if said == "UTF-8" else "submission.data_part"
        assert answer.error == (400, code) and said in answer.text, (place, answer.text)
    assert shared.nothing_left()


@pytest.mark.parametrize(("key", "data", "code"), [
    (r"\ud800", '{"dataSource": [{"type": "fs", "%s": 1}]}', "submission.data_part"),
    (r"\ud800", '{"dataSource": [{"type": "connection", "connection": {"type": "http", "%s": 1}}]}',
     "submission.data_part"),
    (r"\udfff", '{"dataSource": "[{\\"type\\": \\"fs\\", \\"\\%s\\": 1}]"}', "submission.data_source"),
])
def test_a_fault_in_a_key_is_refused(shared: Live, key: str, data: str, code: str) -> None:
    answer = shared.submit(START, {"main.py": b""}, data % key)
    assert answer.error == (400, code) and "surrogate" in answer.text, answer.text
    assert shared.nothing_left()


def test_json_up_to_the_depth_limit_and_surrogate_pairs_are_accepted(live: Live) -> None:
    deep = "[" * (strict_json.DEEPEST - 4) + "]" * (strict_json.DEEPEST - 4)
    data = '{"dataSource": [{"type": "fs", "description": "\\ud83d\\ude00", "schema": {"a": ' + deep + "}}]}"
    answer = live.submit(START, {"main.py": b""}, data)
    assert answer.status == 200, answer.text
    assert answer.json()["dataSource"][0]["description"] == "\U0001f600"
    assert live.call("GET", "/execs").json()[0]["dataSource"][0]["schema"]


# --- values that an earlier server or a program stored

def lists(live: Live, exec_id: str) -> list[Answer]:
    """Return the responses of every call that shows an exec or its connections."""
    paths = ["/execs", f"/execs/{exec_id}", f"/execs/{exec_id}/follow", f"/execs/{exec_id}/why", "/connections"]
    return [live.call("GET", path) for path in paths] + [
        live.call("GET", path, base="") for path in (wire.ENGINE_APPLICATIONS, wire.APPLICATIONS)]


ODD: list[Callable[[Any], Any]] = [
    lambda text: [{"type": "fs", "x": text}], lambda text: [{"type": "fs", text: {"a": [text]}}],
    lambda _: [{"type": "fs", "schema": float("inf")}],
]


@pytest.mark.parametrize("odd", ODD)
def test_a_stored_fault_does_not_break_lists(live: Live, odd: Callable[[Any], Any]) -> None:
    exec_id, other = live.submitted(), live.submitted()
    body = json.dumps({"name": "lake", "type": "http", "values": {"url": "https://example.com/"}}).encode()
    assert live.call("POST", "/connections", body, JSON).status == 200
    public = json.dumps({"url": "https://example.com/\ud800"})
    live.database.write(lambda c: (
        c.execute(update(execs).where(execs.c.id == exec_id).values(data_source=json.dumps(odd("\ud800")))),
        c.execute(update(connections).values(public=public)),
    ))
    for answer in lists(live, exec_id):
        assert answer.status == 200 and answer.json() is not None, answer.text
    assert other in live.call("GET", "/execs").text
    [shown] = live.call("GET", "/connections").json()
    assert shown["values"] == {"url": "https://example.com/?"}


def test_a_fault_in_progress_does_not_break_lists(live: Live) -> None:
    exec_id = live.submitted()
    live.run_on(exec_id, "cpu-0")
    live.say(exec_id, {"message": "\ud800 half", "epoch": math.inf, "loss": math.nan, "\udfff": 1})
    for answer in lists(live, exec_id):
        assert answer.status == 200 and answer.json() is not None, answer.text
    assert live.call("GET", f"/execs/{exec_id}").json()["message"] == "half"
