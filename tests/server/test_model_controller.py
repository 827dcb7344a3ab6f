"""The loop of the models: execs, the gateway's states, redeployment, failures, and a restart of the server."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from live_server import TOKEN, Live
from modelling import files
from serving_desk import PlayedGateway, Serving
from support import eventually

from dlicmd.contract.states import KILLED
from local_backend.runtime import needs
from local_backend.runtime.shortening import NOTE, shorten
from local_backend.scheduler.model import CPU, GPU, WHOLE, Reason


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def desk(live: Live) -> Iterator[Serving]:
    serving = Serving(live)
    yield serving
    serving.close()


@pytest.fixture
def started(desk: Serving) -> Serving:
    """A server with a model that serves."""
    desk.deploy()
    desk.call("PUT", "/model/ping/operation/start")
    desk.serve()
    desk.until((1, "serving", 100))
    return desk


def test_a_started_model_gets_an_exec_with_its_description(desk: Serving) -> None:
    desk.deploy(attributes=[{"key": "a", "value": "b"}], mk_environments=[{"name": "MINE", "value": "x"}])
    desk.call("PUT", "/model/ping/appprofile", {"policy": {"kernel_min": 2, "task_execution_timeout": 7},
                                                "kernel": {"connection_timeout": 11}})
    desk.call("PUT", "/model/ping/operation/start")
    row = desk.job(1)
    spec = row.workload
    assert (row.kind, row.creator, row.framework, row.app_name, spec.program.main) == (
        "service", "alice", "Inference", "ping", "kernel.py")
    assert spec.service is not None and spec.scheduling.consumer == "/local/inference"
    assert (spec.service.model, spec.service.revision, spec.service.connection_timeout, spec.service.leave_timeout) == (
        "ping", 1, 11.0, 37.0)
    assert spec.service.description["attributes"] == [{"key": "a", "value": "b"}]
    assert (spec.resources.elastic, spec.resources.min_workers) == (True, 2)
    assert set(spec.environment.variables) == {"MINE", "DLIM_MK_LOG_LEVEL"}
    assert desk.live.paths(row.id).submitted.joinpath("kernel.py").is_file()
    eventually(lambda: desk.live.row(row.id).wanted == 2, "its minimum of kernels is wanted")


def test_models_with_the_same_pack_id_are_in_one_pack(desk: Serving) -> None:
    for name in ("ping", "pong"):
        desk.deploy(name=name)
        desk.call("PUT", f"/model/{name}/appprofile", {
            "kernel": {"gpu": "shared"},
            "resource_allocation": {"kernel": {"gpu_pack_id": "p", "accelerator_resources": "ngpus=0.25"}}})
        desk.call("PUT", f"/model/{name}/operation/start")
    asked = [desk.job(1, name).workload for name in ("ping", "pong")]
    assert [(spec.resources.pack, needs.share(spec.resources, kind), spec.resources.num_worker)
            for spec in asked for kind in (CPU, GPU)] == [("p", WHOLE // 4, 4)] * 4
    listed = {one["id"]: one for one in desk.live.call("GET", "/scheduler/engine/applications").json()}
    (pack,) = {listed[spec.id]["pack_id"] for spec in asked}
    assert listed[pack]["is_packing"] is True and listed[pack]["type"] == "Inference"


def test_the_minimum_of_kernels_changes_while_the_model_runs(started: Serving) -> None:
    def counts() -> tuple[int | None, int | None]:
        row = started.live.row(started.job(1).id)
        return row.wanted, row.least

    eventually(lambda: counts() == (1, 1), "the minimum of the start is written")
    started.call("PUT", "/model/ping/appprofile", {"policy": {"kernel_min": 3, "schedule_interval": 1000}})
    eventually(lambda: counts() == (3, 3), "the larger minimum holds")
    started.call("PUT", "/model/ping/appprofile", {"policy": {"kernel_min": 2, "schedule_interval": 1000}})
    eventually(lambda: counts()[1] == 2, "the smaller minimum holds")
    assert started.job(1).workload.resources.min_workers == 1


def test_the_gateway_gets_models_with_their_limits_and_keys(started: Serving) -> None:
    started.call("PUT", "/model/ping/appprofile", {"policy": {"task_batch_size": 8, "token_rate": 5}})
    started.call("PUT", "/model/ping/shared", ["bob"])
    eventually(lambda: started.gateway.states[-1]["models"]["ping"]["shared"] == ["bob"], "the gateway knows it")
    found = started.gateway.states[-1]["models"]["ping"]
    assert (found["owner"], found["limits"]["batch_size"], found["limits"]["token_rate"]) == ("alice", 8, 5.0)
    (revision,) = found["revisions"]
    service = started.job(1).workload.service
    assert service is not None and revision["key"] == service.key and revision["exec_id"] == started.job(1).id
    versions = [one["version"] for one in started.gateway.states]
    assert versions == sorted(set(versions))


def test_a_serving_model_is_shown_as_recorded(started: Serving) -> None:
    started.gateway.report(1, 2, queued=3, clients=4, running=1)
    eventually(lambda: started.get("/model/ping/instance")["instances"][0]["pending_tasks"] == 3, "the load is known")
    shown = started.get("/model/ping/instance")
    assert (shown["name"], shown["state"]) == ("ping", "enabled")
    (replica,) = shown["instances"]
    assert replica["pj_jobid"] == f"edi-ping-{started.job(1).id}"
    assert (replica["gpu_mode"], replica["gpu_packid"], replica["client_number"]) == ("no", "", 4)
    assert [(one["container_uid"], one["container_status"]) for one in replica["isd_container"]] == [
        ("1", "IDLE"), ("2", "IDLE")]
    model = started.get("/model/ping")
    assert (model["state"], model["service_uri"], model["stream_uri"]) == (
        "Started", "http://127.0.0.1:4321/dlim/v1/inference/ping", "127.0.0.1:4321")
    assert started.get("/model/ping/streaming") == {"streaming_service_uri": "127.0.0.1:4321"}


def test_a_redeployed_model_moves_to_the_new_revision_when_it_is_ready(started: Serving) -> None:
    old = started.job(1).id
    started.gateway.report(1, 2)
    started.upload(files(tag="two"), "/deployment/model/ping")
    started.job(2)
    started.until((1, "serving", 100), (2, "starting", 0))
    eventually(lambda: started.gateway.revisions() == {1: ("serving", 100), 2: ("starting", 0)}, "only 1 serves")
    eventually(lambda: started.live.row(started.job(2).id).wanted == 2, "it begins with as many kernels")
    started.gateway.report(1, 2, running=1)
    started.serve(2)
    started.until((1, "draining", 0), (2, "serving", 100))
    eventually(lambda: started.gateway.revisions() == {1: ("draining", 0), 2: ("serving", 100)}, "2 serves")
    assert not started.live.row(old).stop_requested
    started.gateway.report(1, 2)
    started.stops(old)
    started.until((1, "stored", 0), (2, "serving", 100))


def test_a_failed_revision_leaves_the_old_one_serving(started: Serving) -> None:
    started.upload(files(tag="two"), "/deployment/model/ping")
    started.fail(2, "no module named x")
    started.until((1, "serving", 100), (2, "failed", 0))
    shown = started.get("/model/ping")
    assert (shown["state"], shown["message"]) == ("Started", "no module named x")
    assert shown["revisions"][1]["message"] == "no module named x"


def test_a_model_whose_only_revision_fails_says_why_and_starts_again(desk: Serving) -> None:
    desk.deploy()
    desk.call("PUT", "/model/ping/operation/start")
    desk.fail(1, "no module named x")
    desk.until((1, "failed", 100))
    assert desk.get("/model/ping")["state"] == "Failed"
    assert desk.get("/model/ping/instance") == {
        "name": "ping", "state": "not-available", "message": "no module named x"}
    why = desk.get("/model/ping/why")
    assert (why["state"], why["message"], why["advice"]) == ("Failed", "no module named x", "change")
    first = desk.job(1).id
    desk.call("PUT", "/model/ping/operation/start")
    desk.until((1, "starting", 100))
    eventually(lambda: desk.job(1).id != first, "it has another exec")
    assert desk.live.row(first).deleted


def test_a_revision_whose_exec_ends_gets_another_one(started: Serving) -> None:
    first = started.job(1).id
    started.live.move(first, KILLED)
    eventually(lambda: started.job(1).id != first, "it has another exec")
    started.serve()
    started.until((1, "serving", 100))


def test_a_promoted_revision_takes_over_and_a_rollback_cancels_it(started: Serving) -> None:
    started.upload(files(tag="two"), "/deployment/model/ping")
    second = started.job(2).id
    started.call("PUT", "/model/ping/operation/rollback")
    started.stops(second)
    started.until((1, "serving", 100), (2, "stored", 0))
    started.call("PUT", "/model/ping/operation/promote?revision=2")
    eventually(lambda: started.job(2).id != second, "it has another exec")
    started.serve(2)
    started.until((1, "draining", 0), (2, "serving", 100))


def test_two_revisions_split_the_requests(started: Serving) -> None:
    started.upload(files(tag="two"), "/deployment/model/ping")
    started.call("PUT", "/model/ping/traffic", {"1": 90, "2": 10})
    started.job(2)
    eventually(lambda: started.gateway.revisions() == {1: ("serving", 90), 2: ("starting", 0)}, "only 1 serves")
    started.serve(2)
    eventually(lambda: started.gateway.revisions() == {1: ("serving", 90), 2: ("serving", 10)}, "both serve")


def test_a_stopped_model_answers_what_it_has(started: Serving) -> None:
    exec_id = started.job(1).id
    started.gateway.report(1, 1, running=1, queued=2)
    started.call("PUT", "/model/ping/operation/stop")
    eventually(lambda: started.gateway.revisions() == {1: ("draining", 100)}, "the gateway drains")
    assert started.get("/model/ping/instance")["state"] == "enabled"
    assert started.call("DELETE", "/model/ping").status == 409
    started.gateway.report(1, 1)
    started.stops(exec_id)
    started.until((1, "stored", 100))
    eventually(lambda: started.gateway.revisions() == {}, "the gateway knows it as stopped")
    assert started.get("/model/ping/instance") == {"name": "ping", "state": "disabled"}
    assert started.call("DELETE", "/model/ping").status == 200


def test_a_model_at_zero_gets_a_kernel_when_a_request_waits(desk: Serving) -> None:
    desk.deploy()
    desk.call("PUT", "/model/ping/appprofile", {"policy": {"kernel_min": 0, "schedule_interval": 1000}})
    desk.call("PUT", "/model/ping/operation/start")
    row = desk.job(1)
    desk.until((1, "serving", 100))
    eventually(lambda: desk.live.row(row.id).wanted == 0, "it needs no kernel")
    desk.gateway.report(1, queued=1, arrived=1)
    eventually(lambda: desk.live.row(row.id).wanted == 1, "it needs a kernel at once")


def test_a_killed_server_goes_on(started: Serving) -> None:
    started.upload(files(tag="two"), "/deployment/model/ping")
    jobs = [started.job(1).id, started.job(2).id]
    started.gateway.states.clear()
    started.restart()
    eventually(lambda: started.gateway.revisions() == {1: ("serving", 100), 2: ("starting", 0)}, "the state is back")
    assert [started.job(1).id, started.job(2).id] == jobs
    started.serve(2)
    started.until((1, "draining", 0), (2, "serving", 100))
    started.restart()
    started.stops(jobs[0])
    started.until((1, "stored", 0), (2, "serving", 100))


def test_a_server_that_is_killed_before_the_exec_is_made_makes_it_later(desk: Serving, live: Live) -> None:
    desk.services.model_controller.close()
    desk.deploy()
    desk.call("PUT", "/model/ping/operation/start")
    assert desk.states() == [(1, "stored", 100)]
    desk.restart()
    eventually(lambda: 1 in desk.gateway.revisions(), "the gateway knows the revision")
    desk.serve()
    desk.until((1, "serving", 100))
    assert live.supervisor.woken > 0


def test_a_lost_gateway_gets_the_state_again(started: Serving) -> None:
    started.gateway.lose()
    eventually(lambda: started.gateway.revisions() == {1: ("serving", 100)}, "the state is back")
    assert started.states() == [(1, "serving", 100)]


def test_tokens_are_known_when_the_gateway_asks(started: Serving) -> None:
    def known() -> dict[str, Any]:
        tokens: dict[str, Any] = started.gateway.states[-1]["tokens"]
        return tokens

    service = started.live.services.logons.for_requests(started.live.services.logons.of_token(TOKEN))
    made = started.live.call("POST", "/tokens", b'{"name": "ci", "scope": "read", "expiresIn": 600}',
                             {"Content-Type": "application/json"}).json()["token"]
    for token in (TOKEN, service, made):
        started.gateway.say({"op": "token", "digest": digest(token)})
    eventually(lambda: len(known()) == 3, "all are known")
    assert [(known()[digest(one)]["user"], known()[digest(one)]["admin"], known()[digest(one)]["scope"])
            for one in (TOKEN, service, made)] == [
        ("alice", True, None), ("alice", False, "inference"), ("alice", False, "read")]
    started.gateway.say({"op": "token", "digest": digest("nobody")})
    eventually(lambda: {"op": "no_token", "digest": digest("nobody")} in started.gateway.messages, "it is refused")
    started.live.call("DELETE", "/tokens/ci")
    eventually(lambda: digest(made) not in known(), "a revoked token is forgotten")


def test_a_quota_delays_the_exec_and_says_why(start: Callable[..., Live]) -> None:
    from local_backend.settings import Quotas

    live = start(quotas=Quotas(stored_bytes=1 << 30, free_bytes=1 << 60))
    desk = Serving(live)
    try:
        live.settings.quotas.__dict__["free_bytes"] = 0  # frozen: only this test fills the disk in between
        desk.deploy()
        live.settings.quotas.__dict__["free_bytes"] = 1 << 60
        desk.call("PUT", "/model/ping/operation/start")
        eventually(lambda: "waits" in desk.get("/model/ping").get("message", ""), "the model says why")
        assert desk.states() == [(1, "starting", 100)]
    finally:
        desk.close()


def test_what_kernels_write_is_read_by_offset(started: Serving) -> None:
    row = started.job(1)
    log = started.live.paths(row.id).capture("task12n-1", "stderr", True)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.parent.joinpath("task12n-1.stdout").write_bytes(b"")
    log.write_bytes(b"one\ntwo\n")
    first = started.call("GET", "/model/ping/logs?stream=stderr")
    assert first.body == b"one\ntwo\n"
    with log.open("ab") as file:
        file.write(b"three\n")
    second = started.call("GET", f"/model/ping/logs?stream=stderr&from={first.headers['x-next-offset']}")
    assert second.body == b"three\n"
    log.with_name("task12n-2.stderr").write_bytes(b"new kernel\n")
    third = started.call("GET", f"/model/ping/logs?stream=stderr&from={second.headers['x-next-offset']}")
    assert third.body == b"new kernel\n"
    assert started.call("GET", "/model/ping/logs?kernel=1").body == b"one\ntwo\nthree\n"
    assert started.call("GET", "/model/ping/logs?stream=odd").error == (400, "query.log")


def test_a_shortened_log_is_read_from_its_beginning(started: Serving) -> None:
    row = started.job(1)
    log = started.live.paths(row.id).capture("task12n-1", "stderr", True)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"line\n" * 100)
    end = started.call("GET", "/model/ping/logs?kernel=1").headers["x-next-offset"]
    assert shorten(log, most=100, kept=20)
    found = started.call("GET", f"/model/ping/logs?kernel=1&from={end}")
    assert found.body == NOTE + b"line\n" * 3
    after = started.call("GET", f"/model/ping/logs?kernel=1&from={found.headers['x-next-offset']}")
    assert (after.body, after.headers["x-next-offset"]) == (b"", found.headers["x-next-offset"])


def test_a_gateway_is_found_and_none_is_started_while_nothing_runs(live: Live) -> None:
    gateway = PlayedGateway(live)
    desk = Serving(live, gateway)
    try:
        desk.deploy()
        eventually(lambda: desk.services.model_controller.session.connected, "an old gateway is found")
        assert not live.settings.paths.gateway_config.exists()
    finally:
        desk.close()


def test_a_pending_exec_learns_which_model_holds_slots(desk: Serving, live: Live) -> None:
    desk.deploy()
    desk.call("PUT", "/model/ping/operation/start")
    serving = desk.job(1).id
    live.run_on(serving, "cpu-0", consumer="/local/inference")
    waits = live.submitted("--exec-start PyTorch --model-main main.py")
    live.supervisor.reasons[waits] = Reason("SLOTS", "waiting", 1, None, "wait", "when slots become free")
    (holder,) = live.call("GET", f"/execs/{waits}/why").json()["holders"]
    assert (holder["id"], holder["model"]) == (serving, "ping")
