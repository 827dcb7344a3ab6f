"""POST /scheduler/applications/stop: many applications and packs are stopped in one call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live_server import TOKEN, Answer, Live

from dlicmd.contract import wire

PACKED = "--exec-start PyTorch --model-main main.py --msd-pack-id {} --workerGPULimit 0.5"


def stop(live: Live, body: object, token: str = TOKEN) -> Answer:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    path = wire.STOP_MANY.removeprefix(wire.BASE)
    return live.call("POST", path, sent, {"Content-Type": "application/json"}, token=token)


def outcomes(live: Live, ids: list[str], token: str = TOKEN) -> list[tuple[Any, ...]]:
    answer = stop(live, {"ids": ids}, token)
    assert answer.status == 200, answer
    found = answer.json()
    assert [one["id"] for one in found] == ids and all(type(one["message"]) is str for one in found)
    return [(one["stopped"], one.get("state")) for one in found]


def test_each_id_gets_an_outcome(live: Live) -> None:
    waits, runs, over, gone = (live.submitted() for _ in range(4))
    live.run_on(runs, "cpu-0")
    live.run_on(over, "cpu-0")
    live.move(over, "FINISHED")
    live.call("DELETE", f"/execs/{gone}")
    woken = live.supervisor.woken
    ids = [runs, "local-99", waits, over, gone, "wmla-1", "..", "", runs]
    assert outcomes(live, ids) == [
        (True, "RUNNING"), (False, None), (True, live.row(waits).state), (False, "FINISHED"), (False, None),
        (False, None), (False, None), (False, None), (True, "RUNNING"),
    ]
    assert [live.row(name).stop_requested for name in (waits, runs, over)] == [True, True, False]
    assert live.supervisor.woken == woken + 1
    said = json.loads((live.settings.home / "audit.log").read_text().splitlines()[-1])
    assert sorted(said["about"]) == sorted([waits, runs])


def test_an_id_of_another_user_is_answered_like_an_unknown_id(start) -> None:
    live = start(embedded=False)
    bob, carol = live.add_user("bob"), live.add_user("carol")
    of_bob = [live.submit("--exec-start PyTorch --model-main main.py", {"main.py": b""}, token=bob).json()["id"]]
    of_bob.append(live.submit(PACKED.format("p"), {"main.py": b""}, token=bob).json()["id"])
    ids = [*of_bob, "pack-bob:p"]
    assert outcomes(live, ids, carol) == [(False, None)] * 3
    assert not any(live.row(name).stop_requested for name in of_bob)
    assert [stopped for stopped, _ in outcomes(live, [of_bob[0], "pack-bob:p"], bob)] == [True, True]
    assert all(live.row(name).stop_requested for name in of_bob)


def test_stopping_a_pack_stops_all_its_jobs(live: Live) -> None:
    one, two = (live.submit(PACKED.format("p"), {"main.py": b""}).json()["id"] for _ in range(2))
    live.run_on(one, "cpu-0")
    live.move(one, "FINISHED")
    assert outcomes(live, ["pack-alice:p", "pack-alice:other"])[0][0] is True
    assert live.row(two).stop_requested and not live.row(one).stop_requested
    live.move(two, "KILLED")
    assert outcomes(live, ["pack-alice:p"]) == [(False, "FINISHED")]


def test_ids_may_exceed_the_parameter_limit_of_the_database(live: Live) -> None:
    names = [live.submitted() for _ in range(3)]
    ids = [f"local-{number}" for number in range(1, wire.MOST_IDS + 1)]
    assert [stopped for stopped, _ in outcomes(live, ids)] == [name in names for name in ids]
    assert outcomes(live, []) == []


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"{}", b'{"ids": "local-1"}', b'{"ids": [1]}',
                                  b'{"ids": [null]}', json.dumps({"ids": ["x"] * (wire.MOST_IDS + 1)}).encode()])
def test_a_body_without_ids_is_refused(shared: Live, body: bytes) -> None:
    answer = stop(shared, body)
    assert answer.status == 400 and answer.error[1] in {"body.json", "body.value"}
