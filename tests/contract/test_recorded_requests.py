"""Requests of the original client, the notebooks, the SDK and shells, replayed byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from contract_world import World
from raw_http import Answer
from recorded import Recorded, recorded

REQUESTS = recorded()


@pytest.fixture(scope="module")
def desk(world: World) -> World:
    (world.live.settings.data_fs / "mnist").mkdir()
    return world


@pytest.mark.parametrize("request_", REQUESTS, ids=[item.title for item in REQUESTS])
def test_a_recorded_request_is_answered_as_its_sender_needs(desk: World, request_: Recorded) -> None:
    before = desk.wire.ask("GET", "/execs").json()
    [answer] = desk.wire.exchange(request_.bytes_for(desk))
    expected = request_.expected
    assert answer.status == int(expected["expect"]), answer
    assert expected.get("says", "") in answer.text if "says" in expected else True
    if "files" in expected:
        check_submission(desk, answer, expected)
    else:
        assert answer.status < 400 or "raw" in expected or answer.is_plain_error, answer
        assert desk.wire.ask("GET", "/execs").json() == before


def check_submission(desk: World, answer: Answer, expected: dict[str, str]) -> None:
    """Check that the submission has the files and the command that its sender meant, then delete it."""
    shown = answer.json()
    program = desk.live.row(shown["id"]).workload.program
    folder = Path(shown["workDir"].partition("/_submitted_code")[0]) / "_submitted_code"
    there = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert there == sorted(expected["files"].split())
    if "command" in expected:
        assert program.user_cmd == tuple(expected["command"].split())
    else:
        assert (program.main, program.arguments) == (expected["main"], tuple(expected["words"].split()))
    assert shown["appName"] == expected.get("app", shown["appName"])
    assert shown.get("dataSource", []) == json.loads(expected.get("source", "[]"))
    if "hidden" in expected:
        assert expected["hidden"] not in answer.text + desk.wire.ask("GET", "/execs").text
    assert desk.wire.ask("DELETE", f"/execs/{shown['id']}").status == 204


def test_the_recordings_have_at_least_40_requests_with_unique_titles() -> None:
    assert len(REQUESTS) >= 40 and len({item.title for item in REQUESTS}) == len(REQUESTS)
