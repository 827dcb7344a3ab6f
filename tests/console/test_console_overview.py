"""The overview: who holds the slots, the queue, the shares, and that many open pages cost one rendering."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from live_server import TOKEN, Live
from modelling import Modelling
from page_desk import get, post, words
from serving_desk import Serving

from dlicmd.sdk.paths import samples_dir
from local_backend.console import places
from local_backend.console.overview import color
from local_backend.runtime.occupancy import Holder, SlotPlace
from local_backend.scheduler.forecast import PlanShare
from local_backend.scheduler.model import Reason, SchedulerJob
from local_backend.scheduler.slots import cpu_slots
from local_backend.services.access import Caller
from local_backend.services.plans import PlanService

HOME = "/console"
SLOTS = cpu_slots(4)


def job(exec_id: str, user: str, **more: object) -> SchedulerJob:
    values = {"kind": "cpu", "plan": ("local", "training"), "since": 0.0, "most": 4, "elastic": True}
    return SchedulerJob(exec_id, user, **values | more)  # type: ignore[arg-type]


def hold(live: Live, *holders: str | None) -> None:
    """Have execs hold the four slots."""
    live.supervisor.held = [
        SlotPlace(slot, (Holder(name),) if name else ()) for slot, name in zip(SLOTS, holders, strict=True)
    ]


def slots(text: str) -> list[tuple[str, str]]:
    """Return the class and the words of each slot."""
    found = re.findall(r'<li class="slot ([^"]*)" id="slot-[^"]*">(.*?)</li>', text, re.DOTALL)
    return [(name, " ".join(re.sub(r"<[^>]*>", " ", inside).split())) for name, inside in found]


def section(text: str, name: str) -> str:
    """Return a section of the page."""
    return text.partition(f'<section class="card" id="{name}"')[2].partition("</section>")[0]


def test_the_first_page_starts_the_example(live: Live) -> None:
    assert f'action="{places.EXAMPLE}"' in get(live, HOME).text
    answer = post(live, places.EXAMPLE)
    assert (answer.status, answer.headers["location"]) == (303, f"{places.RUNS}/local-1")
    found = live.call("GET", "/execs/local-1").json()
    assert found["appName"] == "example" and "--numWorker 2" in found["args"]
    code = {one["path"] for one in live.call("GET", "/execs/local-1/code").json()["files"]}
    assert {"train.py", "network.py"} <= code and not any(name.startswith("data") for name in code)
    assert places.EXAMPLE not in get(live, HOME).text
    assert (samples_dir() / "digits" / "train.py").is_file()


def test_a_server_for_a_team_has_no_example(team: Live) -> None:
    assert places.EXAMPLE not in get(team, HOME).text
    assert post(team, places.EXAMPLE).error == (404, "http.no_such_path")


def test_two_jobs_share_the_slots_and_one_gets_them_back(live: Live) -> None:
    first = live.submitted("--exec-start PyTorch --model-main main.py --appName first")
    live.run_on(first, "cpu-0", "cpu-1", "cpu-2", "cpu-3")
    hold(live, first, first, first, first)
    assert [name for name, _ in slots(get(live, HOME).text)] == ["used k1"] * 4
    second = live.submitted("--exec-start PyTorch --model-main main.py --appName second")
    live.run_on(second, "cpu-2", "cpu-3")
    hold(live, first, first, second, second)
    shown = slots(get(live, HOME).text)
    assert [name for name, _ in shown] == ["used k1", "used k1", "used k2", "used k2"]
    assert [inside.split()[1] for _, inside in shown] == ["first", "first", "second", "second"]
    live.move(second, "FINISHED")
    hold(live, first, first, first, first)
    assert [name for name, _ in slots(get(live, HOME).text)] == ["used k1"] * 4


@pytest.mark.parametrize(("told", "progress", "metric"), [
    ({"step": 3, "steps": 12, "loss": 0.5}, "step 3 of 12", "loss 0.5"),
    ({"lastMetrics": {"f1": {"value": 0.25, "step": 7, "stepUnit": "epoch"}}}, "epoch 7", "f1 0.25"),
    ({}, "", ""),
])
def test_running_runs_show_their_progress_and_first_metric(
    live: Live, told: dict[str, object], progress: str, metric: str
) -> None:
    run = live.submitted("--exec-start PyTorch --model-main main.py")
    live.run_on(run, "cpu-0")
    live.say(run, told)
    row = section(get(live, HOME).text, "running").partition(f'id="running-{run}"')[2]
    cells = [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
    assert (cells[3], cells[7]) == (progress, metric)


def test_other_users_see_neither_names_nor_ids(team: Live) -> None:
    bob = team.add_user("bob")
    mine = team.submitted("--exec-start PyTorch --model-main main.py --appName secret-of-alice")
    team.run_on(mine, "cpu-0", "cpu-1")
    hold(team, mine, mine, None, None)
    team.supervisor.jobs = [job(mine, "alice", running=True), job("local-99", "bob")]
    text = get(team, HOME, bob).text
    assert "another user" in text and "secret-of-alice" not in text and mine not in text and "alice" not in text
    assert [name for name, _ in slots(text)][:2] == ["used", "used"]
    assert "secret-of-alice" in get(team, HOME).text


def test_the_shares_show_what_users_deserve_and_use(team: Live) -> None:
    bob = team.add_user("bob")
    mine = team.submitted()
    team.run_on(mine, "cpu-0", "cpu-1", "cpu-2")
    hold(team, mine, mine, mine, None)
    team.supervisor.jobs = [job(mine, "alice", running=True), job("local-98", "bob")]
    told = words(get(team, HOME))
    assert "user alice 3 2 4" in told and "user bob 0 2 4" in told and "training 3 4 8" in told
    seen = words(get(team, HOME, bob))
    assert "user bob 0 2 4" in seen and "training 3 4 8" in seen and "user alice" not in seen
    answer = team.call("GET", "/resplans/shares", token=bob).json()
    assert {one.get("user") for one in answer} == {None, "bob"}


def test_the_queue_tells_reasons_and_starts(live: Live) -> None:
    waits = live.submitted()
    live.supervisor.reasons[waits] = Reason("SLOTS", "waiting for 2 CPU slots", 1, 4_000_000_000.0)
    text = get(live, HOME).text
    assert "waiting for 2 CPU slots; position 1 in the queue" in words(get(live, HOME))
    assert 'datetime="2096-10-02T07:06:40Z"' in text and "not before" not in text


def test_names_of_runs_are_escaped(live: Live) -> None:
    exec_id = live.submitted("--exec-start PyTorch --model-main main.py --appName \"<img src=x>\"")
    assert exec_id in get(live, HOME).text and "<img src=x>" not in get(live, HOME).text


def test_many_pages_of_a_user_cost_one_rendering(team: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    bob = team.add_user("bob")
    renderings: list[str] = []
    found = PlanService.shares

    def shares(service: PlanService, caller: Caller) -> list[PlanShare]:
        renderings.append(caller.name)  # each rendering asks for the shares once
        return found(service, caller)

    monkeypatch.setattr(PlanService, "shares", shares)
    monkeypatch.setattr("local_backend.console.shared._NEW", 3600.0)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: get(team, HOME, bob if number % 2 else TOKEN), range(200)))
    assert {answer.status for answer in answers} == {200}
    assert sorted(renderings) == ["alice", "bob"]
    team.submitted()  # a change is seen at once
    assert "local-1" in get(team, HOME).text
    assert sorted(renderings) == ["alice", "alice", "bob"]


def test_runs_keep_their_colors() -> None:
    known: dict[str, int] = {}
    color(known, ["a", "b", "c"])
    assert known == {"a": 1, "b": 2, "c": 3}
    color(known, ["d", "c", "b"])
    assert known == {"b": 2, "c": 3, "d": 1}
    color(known, map(str, range(9)))
    assert sorted(known.values()) == [1, 1, 2, 3, 4, 5, 6, 7, 8]


def test_long_tables_are_cut(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_backend.console.overview._SHOWN", 2)
    for number in range(3):
        live.submitted(f"--exec-start PyTorch --model-main main.py --appName run{number}")
    shown = words(get(live, HOME))
    assert "run0" in shown and "run2" not in shown and "1 more" in shown


def test_services_are_shown_once_there_is_one(team: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_backend.console.shared._NEW", 0.0)
    bob = team.add_user("bob")
    assert "Services" not in re.findall(r"<h2[^>]*>([^<]*)", get(team, HOME).text)
    Modelling(team).deploy("ping")
    assert "Services" in re.findall(r"<h2[^>]*>([^<]*)", get(team, HOME).text)
    assert 'href="/console/services/ping"' in get(team, HOME).text
    assert "/console/services/ping" not in get(team, HOME, bob).text


def test_services_are_no_runs(live: Live) -> None:
    serving = Serving(live)
    try:
        serving.deploy()
        serving.call("PUT", "/model/ping/operation/start")
        waits = serving.job(1).id
        queue = section(get(live, HOME).text, "queue")
        assert 'href="/console/services/ping"' in queue and f"/console/runs/{waits}" not in queue
        hold(live, waits, None, None, None)
        live.run_on(waits, "cpu-0")
        text = get(live, HOME).text
        assert "No run is running" in section(text, "running") and waits not in section(text, "running")
        assert slots(text)[0][1].startswith("cpu-0 ping service · alice") and "/console/services/ping" in text
        assert [one.strip() for one in re.findall(r"<td[^>]*>([^<]*)</td>", section(text, "services"))][:3] == [
            "1", "0", "1"], "revision, kernels that are ready, slots"
        told = live.call("GET", "/scheduler/slots").json()
        assert told["running"][0]["model"] == told["slots"][0]["holders"][0]["model"] == "ping"
    finally:
        serving.close()
