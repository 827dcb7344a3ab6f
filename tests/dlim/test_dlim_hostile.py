"""dlim with a server whose answers are not those of the contract: an error in one line, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from dlim_desk import DlimDesk, ModelServer
from fake_server import Reply, Seen


class Hostile(ModelServer):
    """A server with the same answer to each call."""

    body = b""

    def answer(self, seen: Seen) -> Reply:
        return Reply(200, self.body, {"Content-Type": "application/json"})


@pytest.fixture(scope="module")
def running() -> Iterator[Hostile]:
    with Hostile() as server:
        yield server


BODIES = (
    "null", "[]", "{}", "3", '"text"', "[null, 3, []]", "[{}]", '{"name": 3, "state": [], "service_uri": {}}',
    '{"model_list": [{"name": {}}], "runtimes": [3, {"type": []}], "service_token": 3, "user_token": []}',
    json.dumps({"name": "m\u001b[31m\n", "state": "enabled", "instances": [
        3, {"isd_container": [None, {"container_status": 3}], "request_per_sec": "x", "pending_tasks": []}],
        "revisions": [{"number": "x", "source": 3, "weight": None}], "attributes": [3, {"key": []}], "shared": 3,
        "policy": [], "create_time": 1e30, "size": -1, "readme": [], "message": {"a": 1}}),
    '{"create_time": 1e300, "started_at": -5, "last_updated_time": "soon"}',
)
COMMANDS = (
    ("model", "list"), ("model", "view", "m"), ("model", "view", "m", "-s", "-a"), ("model", "viewprofile", "m"),
    ("model", "readme", "m"), ("model", "undeploy", "m"), ("model", "saved"), ("runtime", "list"),
    ("runtime", "view", "r"), ("why", "m"), ("top",), ("config", "-s"), ("logs", "m"), ("invoke", "m", "-d", "1"),
    ("model", "start", "m", "--wait", "--wait-timeout", "1"), ("model", "save", "local-1", "--name", "m"),
    ("model", "promote", "m", "--space", "s"), ("model", "deploy", "--saved", "m"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_strange_answers_cause_no_traceback(desk: DlimDesk, running: Hostile, words: tuple[str, ...]) -> None:
    desk.embed(running)
    for body in BODIES:
        running.body = body.encode()
        done = desk.run(*words)
        assert b"Traceback" not in done.raw_err and "unexpected" not in done.err, (body, done.err)
        assert b"\x1b" not in done.raw_out + done.raw_err or words[0] in ("invoke", "logs"), body
