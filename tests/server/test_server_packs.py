"""Packs, shown as applications.

Contract, section 2.2: 'is_packing: true = pack parent', 'pack_id: on a child: id of its pack parent'.
"""

from __future__ import annotations

from typing import Any

from live_server import Live

from dlicmd.contract.states import FINISHED, KILLED, RUNNING

APPLICATIONS = "/scheduler/engine/applications"
WORDS = "--exec-start PyTorch --model-main main.py --msd-pack-id p --workerCPULimit 0.25 --workerMemoryLimit 1234567m"


def listed(live: Live, query: str = "") -> dict[str, dict[str, Any]]:
    return {found["id"]: found for found in live.call("GET", APPLICATIONS + query).json()}


def pack(live: Live, words: str = WORDS) -> tuple[str, str, str]:
    """Submit a pack of two jobs, the first running, and return the ids of the pack and of its jobs."""
    first, second = live.submitted(words), live.submitted(words)
    live.run_on(first, "cpu-0")
    return listed(live)[first]["pack_id"], first, second


def test_a_pack_has_the_same_state_in_every_call(live: Live) -> None:
    name, first, second = pack(live)
    live.move(second, KILLED)
    assert set(listed(live, f"?state={RUNNING}")) == {name, first}
    assert set(listed(live, f"?state={KILLED}")) == {second}, "the running pack is listed as killed"
    (alone,) = live.call("GET", f"{APPLICATIONS}/{name}").json()
    assert alone == listed(live)[name] == listed(live, f"?state={RUNNING}")[name]
    assert alone["state"] == RUNNING and alone["start_time"] and not alone["end_time"]
    live.move(first, FINISHED)
    ended = listed(live, f"?state={KILLED},{FINISHED}")[name]
    assert ended["state"] == KILLED and ended["start_time"] == alone["start_time"] and ended["end_time"]


def test_the_limit_of_a_pack_is_the_sum_over_all_workers(live: Live) -> None:
    words = WORDS.replace("PyTorch", "distPyTorch") + " --numWorker 2"
    name, first, _ = pack(live, words)
    found = listed(live)
    assert found[name]["task12n_resreq"] == f"ncpus_limit=1,ngpus_limit=0,mem_limit={4 * 1234567}"
    assert found[first]["task12n_resreq"] == "ncpus=0.25,ngpus=0,mem=1234567"
    assert found[name]["is_packing"] is True and found[name]["task12n_num"] == 1


def test_packs_of_two_users_are_never_the_same(live: Live) -> None:
    words = WORDS.replace("-id p", "-id {}") + " --submit-user {}"
    one, other = live.submitted(words.format("b-c", "a")), live.submitted(words.format("c", "a-b"))
    found = listed(live)
    assert found[one]["pack_id"] != found[other]["pack_id"]
    assert {found[found[name]["pack_id"]]["name"] for name in (one, other)} == {"b-c", "c"}


def test_a_pack_is_stopped_with_its_jobs_and_only_once(live: Live) -> None:
    name, first, second = pack(live)
    assert live.call("PUT", f"/scheduler/applications/{name}/stop").status == 200
    live.move(first, KILLED)
    live.move(second, KILLED)
    answer = live.call("PUT", f"/scheduler/applications/{name}/stop")
    assert answer.error == (400, "exec.ended") and name in answer.text
