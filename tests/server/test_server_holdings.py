"""The history of slots over HTTP."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from live_server import Live, settings_for

from dlicmd.contract.states import ERROR, FINISHED
from local_backend.store import holdings
from local_backend.store.holdings import SlotPart

PATH = "/scheduler/holdings"
TRAINING, NIGHT = "/local/training", "/local/night"
#: 2026-01-01T00:00:00Z
NOON = 1767225600.0


def fill(live: Live) -> None:
    """Store a history: ann holds two GPUs for 10 minutes, and bob holds one core for 5 minutes."""
    lives = [
        ("local-1", "ann", TRAINING, [SlotPart("gpu-0", "gpu"), SlotPart("gpu-1", "gpu")], 0.0, 600.0),
        ("local-2", "bob", NIGHT, [SlotPart("cpu-0", "cpu")], 300.0, 600.0),
    ]
    for exec_id, user, consumer, parts, begin, end in lives:
        live.database.write(lambda c, a=(exec_id, user, consumer, parts, NOON + begin): holdings.hold(c, *a))
        live.database.write(lambda c, a=(exec_id, NOON + end): holdings.release(c, *a))


def ask(live: Live, **query: object) -> Any:
    words = "&".join(f"{name.rstrip('_')}={quote(str(value))}" for name, value in query.items())
    answer = live.call("GET", f"{PATH}?{words}")
    assert answer.status == 200, answer.text
    return answer.json()


def test_slot_seconds_are_summed_by_consumer_user_exec_and_slot(live: Live) -> None:
    fill(live)
    found = ask(live, from_=NOON, to=NOON + 600)
    assert found == {
        "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:10:00Z", "by": "consumer", "slotSeconds": 1500.0,
        "rows": [
            {"key": TRAINING, "slotSeconds": 1200.0, "share": 0.8}, {"key": NIGHT, "slotSeconds": 300.0, "share": 0.2},
        ],
    }
    for by, keys in (
        ("user", ["ann", "bob"]), ("exec", ["local-1", "local-2"]), ("slot", ["gpu-0", "gpu-1", "cpu-0"]),
    ):
        assert [row["key"] for row in ask(live, from_=NOON, to=NOON + 600, by=by)["rows"]] == keys
    gpus = ask(live, from_=NOON, to=NOON + 600, by="user", kind="gpu")
    assert gpus["rows"] == [{"key": "ann", "slotSeconds": 1200.0, "share": 1.0}] and gpus["slotSeconds"] == 1200.0


@pytest.mark.parametrize(("begin", "end"), [
    ("2026-01-01T00:05:00Z", "2026-01-01T00:06:00Z"), ("2026-01-01T01:05:00+01:00", "2026-01-01 00:06:00"),
    (str(NOON + 300), "2026-01-01T00:06:00.000+00:00"), (int(NOON + 300), NOON + 360),
])
def test_times_are_iso_or_epoch_and_intervals_are_clipped(live: Live, begin: object, end: object) -> None:
    fill(live)
    assert ask(live, from_=begin, to=end)["slotSeconds"] == 180.0


def test_an_unescaped_plus_sign_is_read_as_a_plus(live: Live) -> None:
    fill(live)
    found = live.call("GET", f"{PATH}?from=2026-01-01T01:05:00+01:00&to=2026-01-01T01:06:00+01:00").json()
    assert (found["from"], found["slotSeconds"]) == ("2026-01-01T00:05:00Z", 180.0)


def test_single_holdings_are_listed(live: Live) -> None:
    fill(live)
    exec_id = live.submitted()
    live.run_on(exec_id, "cpu-0")
    closed = ask(live, from_=NOON + 300, to=NOON + 360, by="holding")
    assert closed["by"] == "holding" and closed["slotSeconds"] == 180.0
    assert closed["rows"][2] == {
        "execId": "local-2", "user": "bob", "consumer": NIGHT, "slot": "cpu-0", "kind": "cpu", "share": 1.0,
        "from": "2026-01-01T00:05:00Z", "to": "2026-01-01T00:10:00Z",
    }
    (held,) = ask(live, by="holding")["rows"]
    assert (held["execId"], held["user"], "to" in held) == (exec_id, "alice", False)


def test_a_held_slot_counts_until_now_and_a_deleted_exec_stays(live: Live) -> None:
    exec_id = live.submitted()
    began = time.time()
    live.run_on(exec_id, "cpu-0", "cpu-1")
    found = ask(live, to=began + 3600)
    assert [row["key"] for row in found["rows"]] == [TRAINING]
    assert 0 <= found["slotSeconds"] <= 2 * (time.time() - began) + 0.01, "slot seconds of the future are counted"
    live.move(exec_id, FINISHED)
    live.forget(exec_id)
    after = [ask(live, by="exec", to=began + 3600) for _ in range(2)]
    assert after[0]["slotSeconds"] == after[1]["slotSeconds"] and after[0]["rows"][0]["key"] == exec_id


def test_an_exec_counts_to_its_own_end(live: Live) -> None:
    exec_id = live.submitted()
    began = time.time()
    live.run_on(exec_id, "cpu-0")
    live.move(exec_id, ERROR, end_time=began - 5)
    assert ask(live, by="exec")["rows"] == []


def test_a_change_of_the_plans_counts_from_then_on(live: Live) -> None:
    exec_id = live.submitted("--exec-start PyTorch --model-main main.py --consumer night")
    live.run_on(exec_id, "cpu-0")
    document = json.dumps({"plans": [{"name": "training"}, {"name": "night"}]}).encode()
    assert live.call("PUT", "/resplans/resplantree", document, {"Content-Type": "application/json"}).status == 200
    first, second = ask(live, by="holding")["rows"]
    assert (first["consumer"], second["consumer"]) == (TRAINING, NIGHT)
    assert "to" in first and "to" not in second


def test_an_empty_history_has_no_rows(live: Live) -> None:
    found = ask(live)
    assert (found["slotSeconds"], found["rows"], found["by"]) == (0, [], "consumer")


@pytest.mark.parametrize(("query", "code", "named"), [
    ("from=x", "query.time", ["from: 'x'"]),
    ("to=2026-13-01", "query.time", ["to: '2026-13-01'"]),
    ("from=", "query.time", ["from: ''"]),
    ("from=nan", "query.time", ["from: 'nan'"]),
    ("from=-5", "query.time", ["from: '-5'"]),
    ("from=%EF%BC%91", "query.time", ["from: '１'"]),
    ("to=99999999999999999999", "query.time", ["to: '99999999999999999999'", "1970", "9999"]),
    ("to=1969-12-31T00:00:00Z", "query.time", ["to: '1969-12-31T00:00:00Z'", "1970", "9999"]),
    ("from=0001-01-01T00:00:00%2B14:00", "query.time", ["from: '0001-01-01T00:00:00+14:00'", "1970", "9999"]),
    ("from=200&to=100", "query.time", ["from: 1970-01-01T00:03:20Z", "1970-01-01T00:01:40Z"]),
    ("by=plan", "query.by", ["by: ", "'plan'", "consumer, user, exec, slot or holding"]),
    ("kind=tpu", "query.kind", ["kind: ", "'tpu'", "gpu or cpu"]),
])
def test_an_invalid_query_is_refused(shared: Live, query: str, code: str, named: list[str]) -> None:
    answer = shared.call("GET", f"{PATH}?{query}")
    assert answer.error == (400, code) and all(text in answer.text for text in named), answer


def test_a_list_that_is_too_long_is_refused(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(live)
    monkeypatch.setattr("local_backend.services.holdings._MOST", 2)
    answer = live.call("GET", f"{PATH}?from=0&by=holding")
    assert answer.error == (400, "holdings.too_many") and "2 intervals" in answer.text


def test_a_starting_server_deletes_old_holdings(tmp_path) -> None:
    live = Live(settings_for(tmp_path / "home"))
    limit = time.time() - holdings.KEPT
    for exec_id, end in (("local-1", limit - 3600), ("local-2", limit + 3600)):
        held = (exec_id, "ann", TRAINING, [SlotPart("cpu-0", "cpu")], end - 9)
        live.database.write(lambda c, a=held: holdings.hold(c, *a))
        live.database.write(lambda c, a=(exec_id, end): holdings.release(c, *a))
    live.close()
    live = Live(settings_for(tmp_path / "home"))
    assert [row["execId"] for row in ask(live, from_=0, by="holding")["rows"]] == ["local-2"]
    live.close()
