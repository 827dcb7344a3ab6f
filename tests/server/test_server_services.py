"""Execs that run the kernels of models, over HTTP."""

from __future__ import annotations

from pathlib import Path

from live_server import Live
from workloads import workload

from local_backend.store import events, execs
from local_backend.workload import Service


def served(live: Live, *, wanted: int | None = None, **values: object) -> str:
    """Add a service, as the controller of models does."""
    number = live.database.write(execs.next_number)
    job = workload(
        id=execs.exec_id(number), name="digits", creator="alice", kind="service", elastic=True, num_worker=4,
        service=Service("digits", 1, "key", "/run/kernels.sock", {"name": "digits"}), **values)
    live.database.write(lambda c: execs.create(c, number, job, "", None, str(Path("/work"))))
    live.database.write(lambda c: execs.want(c, job.id, wanted))
    return job.id


def ids(live: Live, path: str) -> list[str]:
    return [one["id"] for one in live.call("GET", path).json()]


def test_services_are_listed_only_on_request(live: Live) -> None:
    service, training = served(live), live.submitted()
    assert ids(live, "/execs") == ids(live, "/execs?kind=training") == [training]
    answer = live.call("GET", "/execs?kind=service&limit=1")
    assert [one["id"] for one in answer.json()] == [service] and answer.headers["x-total-count"] == "1"
    assert live.call("GET", f"/execs/{service}").json()["id"] == service
    assert live.call("GET", "/execs?kind=search").status == 400


def test_a_service_is_an_application_of_the_plan_for_inference(live: Live) -> None:
    service = served(live)
    live.run_on(service, "cpu-0", consumer="/local/inference")
    live.say(service, {"workers": 2, "ready": 1, "deaths": 3}, (4, 5))
    (found,) = live.call("GET", "/scheduler/engine/applications").json()
    assert (found["id"], found["type"], found["consumer"]) == (service, "Inference", "/local/inference")
    assert "task0" not in found
    shown = live.call("GET", f"/execs/{service}").json()
    assert (shown["workers"], shown["ready"], shown["deaths"]) == (2, 1, 3)


def test_a_service_without_requests_says_so(live: Live) -> None:
    service = served(live, wanted=0)
    assert live.call("GET", f"/execs/{service}").json()["reason"] == "REQUESTS"
    live.run_on(service, consumer="/local/inference")
    assert live.call("GET", f"/execs/{service}").json()["reason"] == "REQUESTS"
    live.database.write(lambda c: execs.want(c, service, 1))
    assert live.call("GET", f"/execs/{service}").json().get("reason") is None


def test_a_service_at_its_minimum_waits_if_that_is_not_zero(live: Live) -> None:
    service = served(live)
    for least, reason in ((0, "REQUESTS"), (1, None)):
        assert live.database.write(lambda c, least=least: execs.want(c, service, None, least))
        assert live.row(service).rests == (reason is not None)
        assert live.call("GET", f"/execs/{service}").json().get("reason") == reason


def test_services_count_for_no_limit_of_trainings(live: Live) -> None:
    served(live)
    assert live.database.read(lambda c: execs.count(c, "alice")) == (0, 0)
    live.call("DELETE", "/execs")
    assert ids(live, "/execs?kind=service") == ["local-1"]


def test_each_change_of_what_a_service_wants_is_an_event(live: Live) -> None:
    service = served(live)
    changed = [live.database.write(lambda c, n=n: execs.want(c, service, n)) for n in (2, 2, None)]
    assert changed == [True, False, True]
    told = live.database.read(lambda c: events.since(c, 0, service))
    assert [event.data for event in told if event.kind == events.WANTED] == [{"wanted": 2}, {"wanted": None}]
