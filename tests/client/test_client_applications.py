"""The applications of the scheduler: tables, waiting, stopping and logs."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
import yaml
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.cli.show.apps import cell, packed
from dlicmd.contract import application
from dlicmd.contract.reading import number

ENGINE = f"{BASE}/scheduler/engine/applications"
#: Contract, 4.2: `table id, consumer, submit_user, name, pri, type, state, num, gpu, mem, cpu, submit_time, start_time,
#: age, oldest first`; for the history `duration instead of age`.
ACTIVE = ["id", "consumer", "submit_user", "name", "pri", "type", "state", "num", "gpu", "mem", "cpu", "submit_time",
          "start_time", "age"]
HISTORY = [*ACTIVE[:-1], "duration"]
#: The layout of a terminal. Into a pipe, the tables are those of the original client, see test_manners.
OURS = ("-o", "table")
OCTOBER = 1698424049  # 2023-10-27 16:27:29


def app(app_id: str, **more: Any) -> dict[str, Any]:
    """Return an application with every field of the contract, 2.2."""
    return {
        "id": app_id, "state": "RUNNING", "type": "Training", "tag": "/cpd/training/alice",
        "consumer": "/cpd/training", "submit_user": "alice", "name": "ElasticPyTorchTrain", "priority": 5000,
        "submit_time": OCTOBER, "start_time": OCTOBER + 60, "end_time": 0,
        "task0_resreq": "ncpus=1,ngpus=0,mem=1024", "task12n_resreq": "ncpus=2,ngpus=1,mem=4096", "task12n_num": 4,
        "task0": {"name": "task0"}, "task12n": [{}, {}], "kernels": [], "is_packing": False,
    } | more


def serve(server: FakeServer, *apps: dict[str, Any]) -> None:
    """Let the server list these applications, the newest first."""
    body = list(apps)
    server.replies["GET", ENGINE] = Reply(200, json.dumps(body).encode())
    for one in body:
        server.replies["GET", f"{ENGINE}/{one.get('id')}"] = Reply(200, json.dumps([one]).encode())


def rows(text: str) -> list[list[str]]:
    """Return the cells of each line of a table."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def test_the_table_lists_active_applications_oldest_first(desk: Desk, local: FakeServer) -> None:
    serve(local, app("a-2", state="PENDING_CRD_SCHEDULER", submit_time=OCTOBER + 120, start_time=0), app("a-1"),
          app("a-0", state="FINISHED"))
    done = desk.run("--app-get-all", *OURS)
    assert done.code == 0 and done.err == ""
    found = rows(done.out)
    assert found[0] == ACTIVE
    assert [row[0] for row in found[1:]] == ["a-1", "a-2"], "oldest first; other states must be dropped"
    # The driver and 4 workers: 1 + 4*2 CPU cores, 4*1 GPUs, 1024 + 4*4096 MB.
    assert found[1][1:-1] == ["/cpd/training", "alice", "ElasticPyTorchTrain", "5000", "Training", "RUNNING", "4", "4",
                              "17G", "9", "10-27 16:27", "10-27 16:28"]
    assert found[2][6] == "PENDING" and found[2][12] == "n/a"
    (asked,) = local.requests("GET", "/engine/applications")
    assert asked.query["sort"] == ["-submit_time"] and asked.query["start"] == ["0"]
    assert asked.query["length"] == ["10000"]
    assert set(asked.query["state"][0].split(",")) == {
        "NEW", "SUBMITTED", "PENDING_JOB_SCHEDULER", "PENDING_CRD_SCHEDULER", "LAUNCHING", "RUNNING", "RECOVERING",
        "UNKNOWN"}


def test_the_history_lists_final_applications_with_their_duration(desk: Desk, local: FakeServer) -> None:
    serve(local, app("a-3", state="KILLED", start_time=None, submit_time=OCTOBER + 9),
          app("a-2", state="ERROR", end_time=OCTOBER + 185, submit_time=OCTOBER + 5), app("a-1"),
          app("a-0", state="FAILED"))
    done = desk.run("--app-history-get-all", *OURS, "--app-search-start", "5", "--app-search-length", "7")
    found = rows(done.out)
    assert found[0] == HISTORY
    assert [row[0] for row in found[1:]] == ["a-0", "a-2", "a-3"]
    assert found[2][-1] == "2m5s"
    assert found[3][-1] == "n/a", "the duration must be blank without start or end; the last cell is then start_time"
    (asked,) = local.requests("GET", "/engine/applications")
    assert asked.query["state"] == ["ERROR,FINISHED,KILLED"]
    assert asked.query["start"] == ["5"] and asked.query["length"] == ["7"]


def test_a_message_column_is_added_if_an_application_has_a_message(desk: Desk, local: FakeServer) -> None:
    serve(local, app("a-2", state="PENDING_CRD_SCHEDULER", message="lacks 2\nslots\x1b[31m; place 1 in the queue"),
          app("a-1"))
    found = rows(desk.run("--app-get-all", *OURS).out)
    assert found[0] == [*ACTIVE, "message"]
    assert found[2][-1] == "lacks 2 slots; place 1 in the queue" and len(found[1]) == len(ACTIVE)
    serve(local, app("a-1"))
    assert rows(desk.run("--app-get-all", *OURS).out)[0] == ACTIVE


def test_applications_are_printed_in_other_output_formats(desk: Desk, local: FakeServer) -> None:
    serve(local)
    assert desk.run("--app-get-all").out == "No result found\n"
    assert json.loads(desk.run("--app-get-all", "-o", "json").out) == []
    serve(local, app("a-1", kernels=[{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}, {"ip": "10.0.0.9"}]))
    assert yaml.safe_load(desk.run("--app-get-all", "-o", "yaml").out)[0]["id"] == "a-1"
    pods = [{"spec": {"nodeName": "node-1"}, "status": {"podIP": "10.0.0.1"}},
            {"spec": {"nodeName": "node-2"}, "status": {"podIPs": [{"ip": "10.0.0.2"}, None]}}, None, {}]
    local.replies["GET", f"{BASE}/scheduler/kubernetesobjects"] = Reply(200, json.dumps({"items": pods}).encode())
    chosen = desk.run("--app-get-all", "-o", "custom-columns=id,nodes,tag,gpu,nonsense")
    assert rows(chosen.out)[1] == ["a-1", "node-1,node-2", "/cpd/training/alice", "4", "n/a"]
    assert "nonsense" in chosen.err
    local.replies["GET", f"{BASE}/scheduler/kubernetesobjects"] = Reply(500, b"no cluster")
    assert rows(desk.run("--app-get-all", "-o", "custom-columns=id,nodes").out)[1] == ["a-1", "n/a"]


def test_a_pack_precedes_its_members_and_no_application_is_lost(desk: Desk, local: FakeServer) -> None:
    """Contract, 4.5: 'everything after the first pack parent disappears from the table'."""
    limits = "ncpus_limit=8,ngpus_limit=1,mem_limit=512"
    serve(
        local, app("late", submit_time=OCTOBER + 9), app("of-b", pack_id="b", submit_time=OCTOBER + 8),
        app("b", is_packing=True, submit_time=OCTOBER + 7), app("lost", pack_id="gone", submit_time=OCTOBER + 6),
        app("of-a-2", pack_id="a", submit_time=OCTOBER + 5),
        app("a", is_packing=True, submit_time=OCTOBER + 4, task0_resreq=None, task12n_resreq=limits, task12n_num=1),
        app("of-a-1", pack_id="a", submit_time=OCTOBER + 3), app("itself", pack_id="itself", is_packing=True),
    )
    lines = desk.run("--app-get-all", *OURS).out.splitlines()[1:]
    assert [re.match(r" *\S+", line)[0] for line in lines] == [  # type: ignore[index]
        "itself", "a", "  of-a-1", "  of-a-2", "lost", "b", "  of-b", "late"]
    assert re.split(r"  +", lines[1])[8:11] == ["1", "512M", "8"], "the resources of a pack parent are its limits"


HOSTILE: list[dict[str, Any]] = [
    {}, {"id": None, "state": None}, {"id": 7, "task12n_num": "4", "submit_time": str(OCTOBER)},
    {"id": "x", "task12n_num": None, "submit_time": "soon", "task12n_resreq": "ncpus"},
    {"id": "y", "submit_time": 1e300, "start_time": -5, "task12n_resreq": "ncpus=a=b,,=,mem=1e999", "kernels": 3},
    {"id": "z\x1b[31m\n", "is_packing": "true", "pack_id": {}, "used_mem": "1e2", "priority": [1], "message": {"a": 1}},
    {"id": "v", "used_gpu": True, "submit_time": 1.5, "end_time": "2023-10-27T16:27:29Z", "type": None, "tag": 5},
]


def test_rows_with_missing_or_wrong_fields_do_not_affect_other_rows(desk: Desk, local: FakeServer) -> None:
    serve(local, *HOSTILE, app("a-1"))
    local.replies["GET", f"{BASE}/resplans/resplantree"] = Reply(200, b'{"id": "cpd"}')
    for command in ("--app-get-all", "--app-history-get-all", "--app-analyze", "--rp-get-all"):
        done = desk.run(command)
        assert done.code == 0 and "Traceback" not in done.err and "\x1b" not in done.out, done
    found = rows(desk.run("--app-get-all", *OURS).out)
    assert len(found) == 1 + len(HOSTILE) + 1
    by_id = {row[0]: row for row in found}
    assert by_id["7"][7] == "4" and "10-27 16:27" in by_id["7"]
    assert by_id["a-1"][8:11] == ["4", "17G", "9"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda inner:
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6)


@given(st.lists(st.dictionaries(st.sampled_from(sorted(app("a"))), JSON_VALUES), max_size=6))
def test_any_json_from_a_server_makes_a_table(found: list[dict[str, Any]]) -> None:
    assert sorted(id(one) for _, one in packed(found)) == sorted(map(id, found))
    for one in found:
        assert all(isinstance(cell(one, column), str) for column in (*ACTIVE, *HISTORY, "nodes"))
        assert application.bucket(one) in application.BUCKETS


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), ("3", 3), (" 2.5 ", 2.5), ("1e3", 1000), ("", None), ("x", None), (None, None), (True, None), ("١", None),
     (float("nan"), None), (float("inf"), None), ("1e999", None), (10**400, None), ([], None), ("0x1", None)],
)
def test_numbers_are_parsed_in_every_form_that_servers_use(value: Any, expected: float | None) -> None:
    assert number(value) == expected


def test_current_use_takes_precedence_over_requested_resources(desk: Desk, local: FakeServer) -> None:
    """Contract, 2.2: '`used_gpu`, `used_mem`, `used_cpu`: number or numeric string, current use; mem in MB'."""
    using = {"used_gpu": "2", "used_mem": 8192.0}
    serve(local, app("p", state="SUBMITTED", **using), app("r", **using))
    found = {row[0]: row[8:11] for row in rows(desk.run("--app-get-all", *OURS).out)[1:]}
    assert found == {"r": ["2", "8G", "9"], "p": ["4", "17G", "9"]}


def test_app_get_prints_one_application_as_a_list(desk: Desk, local: FakeServer) -> None:
    serve(local, app("a-1"))
    assert json.loads(desk.run("--app-get", "a-1").out) == [app("a-1")], "contract, 4.2: JSON list"
    assert rows(desk.run("--app-get", "a-1", "-o", "table").out)[0] == ACTIVE
    local.replies["GET", f"{ENGINE}/a-1"] = Reply(200, json.dumps(app("a-1")).encode())
    assert json.loads(desk.run("--app-get", "a-1").out) == [app("a-1")]


@pytest.mark.parametrize("reply", [Reply(200, b"[]"), Reply(404, b"no"), Reply(400, b"no"), Reply(200, b"[null]"),
                                   Reply(200, b"{}")])
def test_an_unknown_application_id_is_reported(desk: Desk, local: FakeServer, reply: Reply) -> None:
    local.replies["GET", f"{ENGINE}/a-1"] = reply
    local.replies["PUT", f"{BASE}/scheduler/applications/a-1/stop"] = Reply(404, b"Error 404: Unknown.\n")
    local.replies["GET", f"{BASE}/scheduler/applications"] = Reply(200, b"[]")
    for command in ("--app-get", "--app-wait", "--app-stop", "--app-outlogs"):
        done = desk.run(command, "a-1")
        assert done.code == 6 and "'a-1'" in done.err and len(done.err.splitlines()) == 1
        assert command == "--app-stop" or desk.run(command, "a-1", "-o", "json").error == "application.not_found"
        assert done.out == ("Stop application a-1 failed. HTTP:404 \n" if command == "--app-stop" else "")


@pytest.mark.parametrize("app_id", [".", "..", "a/../..", "\x1b[31m", "?x", "ä b"])
def test_application_ids_cannot_reach_another_path(desk: Desk, local: FakeServer, app_id: str) -> None:
    for command in ("--app-get", "--app-stop", "--app-wait"):
        done = desk.run(command, app_id)
        assert done.code == 6 and "\x1b" not in done.err + done.out, done
    for seen in local.seen:
        assert seen.path.startswith((f"{ENGINE}/", f"{BASE}/scheduler/applications/"))
        assert seen.path.count("/") <= ENGINE.count("/") + 1


def test_app_wait_prints_the_state_until_the_end(desk: Desk, local: FakeServer) -> None:
    """Contract, 4.2: 'line `ID    STATE    AGE` per poll until terminal'."""
    now = int(time.time())
    states = iter(["", "PENDING_CRD_SCHEDULER", "FINISHED"])
    local.replies["GET", f"{ENGINE}/a-1"] = lambda _: Reply(
        200, json.dumps([app("a-1", state=next(states), submit_time=now)]).encode())
    done = desk.run("--app-wait", "a-1")
    assert done.code == 0 and done.err == ""
    assert [re.sub(r"\d+s$", "Ns", line) for line in done.out.splitlines()] == [
        "a-1    SUBMITTED    Ns", "a-1    PENDING_PJ    Ns", "a-1    FINISHED    Ns"]


@pytest.mark.parametrize(
    ("ending", "more", "code"),
    [({"state": "ERROR", "message": "out of \x1b[1mmemory"}, [], 3), ({"state": "KILLED"}, [], 4),
     ({"state": "ERROR", "exitCode": 7}, ["--pass-exit-code"], 7), ({"state": "FINISHED"}, [], 0),
     ({"state": "PENDING_CRD_SCHEDULER", "reason": "NEVER_SCHEDULABLE"}, [], 10)],
)
def test_app_wait_returns_the_outcome_as_exit_code(
    desk: Desk, local: FakeServer, ending: dict[str, Any], more: list[str], code: int,
) -> None:
    """Contract, 4.5: 'exit 0 after failed stop/delete, after `--app-wait` on a failed app' → 'non-zero'."""
    serve(local, app("a-1", **ending))
    done = desk.run("--app-wait", "a-1", *more)
    assert done.code == code and len(done.out.splitlines()) == 1
    assert ("ended" in done.err) == (code != 0) and "\x1b" not in done.err
    as_data = desk.run("--app-wait", "a-1", "-o", "json", *more)
    assert as_data.code == code and json.loads(as_data.out)["id"] == "a-1" and "a-1    " in as_data.err


def test_app_wait_ends_after_the_wait_timeout(desk: Desk, local: FakeServer) -> None:
    serve(local, app("a-1"))
    done = desk.run("--app-wait", "a-1", "--wait-timeout", "1")
    assert done.code == 7 and "dlicmd --app-wait a-1" in done.err
    assert done.out.splitlines()[0].startswith("a-1    RUNNING    ")


def test_app_wait_retries_while_the_server_is_unavailable(desk: Desk, local: FakeServer) -> None:
    replies = iter([Reply(200, json.dumps([app("a-1")]).encode()), Reply(503, b"restarting"),
                    Reply(200, json.dumps([app("a-1", state="FINISHED")]).encode())])
    local.replies["GET", f"{ENGINE}/a-1"] = lambda _: next(replies)
    done = desk.run("--app-wait", "a-1")
    assert done.code == 0 and len(done.out.splitlines()) == 2 and "trying again" in done.err


def stopper(server: FakeServer, *ids: str) -> None:
    """Let the server stop these applications."""
    for app_id in ids:
        server.replies["PUT", f"{BASE}/scheduler/applications/{app_id}/stop"] = Reply(200, b'{"id":\n"\x1b[1mok"}')


def test_app_stop_stops_the_others_if_one_is_refused(desk: Desk, local: FakeServer) -> None:
    stopper(local, "a-1", "a-3")
    serve(local, app("a-2"))
    local.replies["PUT", f"{BASE}/scheduler/applications/a-2/stop"] = Reply(400, b"Error 400: It has ended.\n")
    done = desk.run("--app-stop", "a-1", "a-2", "a-3")
    assert done.out.splitlines() == [
        'Stop application a-1 succeed. HTTP:200 {"id": "ok"}', "Stop application a-2 failed. HTTP:400 ",
        'Stop application a-3 succeed. HTTP:200 {"id": "ok"}']
    assert done.code == 1 and done.err.count("\n") == 1 and done.err.endswith(" a-2: It has ended.\n")
    assert [seen.body for seen in local.requests("PUT")] == [b""] * 3
    assert desk.run("--app-stop", "a-1").code == 0


def test_app_stop_all_stops_all_active_applications(desk: Desk, local: FakeServer) -> None:
    serve(local)
    assert desk.run("--app-stop-all").out == "No result found\n"
    serve(local, app("a-2", pack_id="a-1"), app("a-1", is_packing=True), app("a-0", state="FINISHED"))
    stopper(local, "a-1", "a-2")
    done = desk.run("--app-stop-all")
    assert done.code == 0 and re.findall(r"Stop application (\S+) succeed", done.out) == ["a-1", "a-2"]
    local.replies["GET", ENGINE] = Reply(500, b"broken")
    assert desk.run("--app-stop-all").code == 1


def test_app_stop_all_ignores_an_application_that_has_ended(desk: Desk, local: FakeServer) -> None:
    serve(local, app("a-2"), app("a-1"))
    stopper(local, "a-2")
    local.replies["PUT", f"{BASE}/scheduler/applications/a-1/stop"] = Reply(400, b"Error 400: It is KILLED already.")
    assert desk.run("--app-stop-all").code == 1, "--app-stop-all must fail while a-1 is still running"
    local.replies["GET", f"{ENGINE}/a-1"] = Reply(200, json.dumps([app("a-1", state="KILLED")]).encode())
    done = desk.run("--app-stop-all")
    assert done.code == 0 and done.err.startswith("dlicmd: a-1 ") and "failed" not in done.out


def test_app_analyze_sums_the_last_hours(desk: Desk, local: FakeServer) -> None:
    """Contract, 4.2: '"From … To …", table tag, type, curr_cpu/gpu/mem, hist_cpu/gpu/mem, PENDING…UNKNOWN'."""
    now = int(time.time())
    serve(
        local, app("r", submit_time=now - 90_000), app("p", state="PENDING_JOB_SCHEDULER", submit_time=now),
        app("n", state="NEW", submit_time=now), app("u", state="FAILED", submit_time=now, type="Notebook"),
        app("e", state="ERROR", submit_time=now - 9000, end_time=now - 60), app("old", state="KILLED"),
        app("f", state="FINISHED", submit_time=now - 9000, end_time=now - 8000),
    )
    done = desk.run("--app-analyze", *OURS)
    first, *table = done.out.splitlines()
    assert re.fullmatch(r"From \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+ To \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", first)
    assert rows("\n".join(table)) == [
        ["tag", "type", "curr_cpu", "curr_gpu", "curr_mem", "hist_cpu", "hist_gpu", "hist_mem", "PENDING", "RUNNING",
         "FINISHED", "KILLED", "ERROR", "UNKNOWN"],
        ["/cpd/training/alice", "Notebook", "0", "0", "0", "9", "4", "17G", "0", "0", "0", "0", "0", "1"],
        ["/cpd/training/alice", "Training", "9", "4", "17G", "9", "4", "17G", "2", "1", "0", "0", "1", "0"],
    ]
    assert "state" not in local.seen[-1].query
    members = [app("m-1", pack_id="p"), app("m-2", pack_id="p")]
    longer = json.loads(desk.run("--app-analyze", "3", "-o", "json").out)
    assert longer[1]["FINISHED"] == 1 and longer[1]["hist_mem"] == 2 * 17408
    for words in (["--app-analyze", "999999999"], ["--app-analyze", "5", "-o", "custom-columns=tag,RUNNING,nope"]):
        assert desk.run(*words).code == 0
    serve(local, *members, app("p", is_packing=True))
    (packs,) = json.loads(desk.run("--app-analyze", "-o", "json").out)
    assert (packs["RUNNING"], packs["curr_cpu"]) == (2, 18), "--app-analyze must count packed applications once"
    serve(local)
    assert desk.run("--app-analyze").out.endswith("No result found\n")


def test_logs_are_printed_for_every_process(desk: Desk, local: FakeServer) -> None:
    line = "=" * 100
    for command, log in {"--app-outlogs": "stdout", "--app-errlogs": "stderr"}.items():
        done = desk.run(command, "w-1")
        tasks = (("Driver", "driver"), ("Executor 1", "executor/1"), ("Executor 2", "executor/2"))
        assert done.out == "".join(f"{line}\n{name} {log}\nw-1/{path}/logs/{log}\n\n" for name, path in tasks)
        assert done.code == 0 and local.requests("GET", f"driver/logs/{log}")
    assert "Driver launcherlog\n" in desk.run("--app-launcherlogs", "w-1").out
    local.replies["GET", f"{BASE}/scheduler/applications/w-1/driver/logs/stdout"] = Reply(500, b"gone")
    done = desk.run("--app-outlogs", "w-1")
    # Contract, 4.2: 'a failing log call is printed as if it were the log'.
    assert done.code == 1 and "gone" not in done.out and "gone" in done.err


def test_logs_of_a_pack_are_the_logs_of_its_jobs(desk: Desk, local: FakeServer) -> None:
    serve(local, app("m-2", pack_id="p"), app("m-1", pack_id="p"), app("m-0"), app("p", is_packing=True))
    details = {"p": [], "m-1": [{"task12n": [{}]}], "m-2": [{"task12n": [{}]}]}
    local.replies["GET", f"{BASE}/scheduler/applications"] = lambda seen: Reply(
        200, json.dumps(details[seen.query["applicationid"][0]]).encode())
    done = desk.run("--app-outlogs", "p")
    line = "=" * 100
    assert done.code == 0 and done.out == "".join(
        f"{name}\n{line}\nExecutor 1 stdout\n{name}/executor/1/logs/stdout\n\n" for name in ("m-1", "m-2"))


def test_applications_of_a_remote_server_are_listed(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    seen: list[Seen] = []

    def answer(request: Seen) -> Reply:
        seen.append(request)
        return Reply(200, json.dumps([app("a-1")]).encode())

    fake.replies["GET", ENGINE] = answer
    assert rows(desk.run("--app-get-all", *OURS, *remote).out)[1][0] == "a-1" and len(seen) == 1


def together(server: FakeServer, *outcomes: dict[str, Any]) -> None:
    """Let the server stop many applications in one call, with these outcomes."""
    server.conf["DLICMD_EXTENSIONS"] = "follow,stop-many"
    server.replies["POST", f"{BASE}/scheduler/applications/stop"] = Reply(200, json.dumps(outcomes).encode())


def test_app_stop_stops_several_in_one_call_if_the_server_supports_it(desk: Desk, local: FakeServer) -> None:
    together(local, {"id": "a-1", "stopped": True, "state": "RUNNING", "message": "stop\x1b[1m requested"},
             {"id": "a-2", "stopped": False, "state": "KILLED", "message": "a-2 is already KILLED"},
             {"id": "a-3", "stopped": False, "message": "Exec 'a-3' is not found"})
    done = desk.run("--app-stop", "a-1", "a-2", "a-3")
    assert done.out.splitlines()[1:] == [f"Stop application {name} failed. HTTP:400 " for name in ("a-2", "a-3")]
    assert re.fullmatch(r"Stop application a-1 succeed\. HTTP:200 stop.*requested", done.out.splitlines()[0])
    assert "\x1b" not in done.out and "a-2 is already KILLED" in done.err and done.code == 6
    [seen] = local.requests("POST")
    assert json.loads(seen.body) == {"ids": ["a-1", "a-2", "a-3"]} and not local.requests("PUT")


def test_the_original_client_stops_each_application_by_its_own_call(desk: Desk, local: FakeServer) -> None:
    """Contract, 4.2: 'PUT scheduler/applications/ID/stop each'."""
    together(local)
    stopper(local, "a-1")
    local.replies["PUT", f"{BASE}/scheduler/applications/a-2/stop"] = Reply(400, b"Error 400: It has ended.\n")
    desk.environment["DLICMD_COMPAT"] = "wmla"
    done = desk.run("--app-stop", "a-1", "a-2")
    assert done.out.splitlines() == ['Stop application a-1 succeed. HTTP:200 {"id": "ok"}',
                                     "Stop application a-2 failed. HTTP:400 Error 400: It has ended."]
    assert done.code == 0 and not local.requests("POST")


def test_app_stop_all_stops_all_in_one_call(desk: Desk, local: FakeServer) -> None:
    serve(local, app("a-2"), app("a-1"))
    together(local, {"id": "a-1", "stopped": False, "state": "FINISHED", "message": "it is over"},
             {"id": "a-2", "stopped": True, "state": "RUNNING", "message": "stop requested"})
    done = desk.run("--app-stop-all")
    assert (done.code, done.out) == (0, "Stop application a-2 succeed. HTTP:200 stop requested\n")
    assert done.err.startswith("dlicmd: a-1 ") and done.err.count("\n") == 1
    assert json.loads(local.requests("POST")[0].body) == {"ids": ["a-1", "a-2"]}
    local.replies["POST", f"{BASE}/scheduler/applications/stop"] = Reply(500, b"Error 500: broken.\n")
    assert desk.run("--app-stop-all").code == 1
    stopper(local, "a-1")
    serve(local, app("a-1"))
    assert desk.run("--app-stop-all").code == 0 and len(local.requests("PUT")) == 1, "1 id must use the single call"
