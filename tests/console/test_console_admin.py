"""The pages for administrators: plans with their preview, usage, users, tokens, the audit log, and health."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from live_server import TOKEN, Live
from page_desk import get, post, words

from local_backend.console.admin_plans import document_of, rows_of
from local_backend.console.sessions import csrf_of
from local_backend.runtime.occupancy import Holder, SlotPlace
from local_backend.scheduler import plans
from local_backend.scheduler.model import SchedulerJob
from local_backend.scheduler.policy import decide
from local_backend.scheduler.slots import cpu_slots
from local_backend.services.health import PROBLEM, Finding

ADMIN = "/console/admin"
JSON = {"Content-Type": "application/json"}
PAGES = ["", "/plans", "/usage", "/usage.json", "/usage.csv", "/users", "/tokens", "/audit", "/health",
         "/health/findings"]
CHANGES = ["/plans", "/plans/rows", "/plans/preview", "/users", "/users/bob/role", "/users/bob/password",
           "/users/bob/remove", "/tokens", "/tokens/revoke"]
COLUMNS = ("weight", "reserved", "max", "user_max", "policy", "reclaim_grace")


def rows(*written: tuple[str, dict[str, str]]) -> dict[str, list[str]]:
    """Return the fields of the form for these plans."""
    fields = {"path": [path for path, _ in written]}
    return fields | {name: [values.get(name, "") for _, values in written] for name in COLUMNS}


@pytest.mark.parametrize("path", PAGES)
def test_other_users_open_no_page(team: Live, path: str) -> None:
    bob = team.add_user("bob")
    assert get(team, ADMIN + path, bob).error[0] == 403
    assert "Administration" not in get(team, "/console", bob).text
    assert get(team, ADMIN + path).status in (200, 303)


@pytest.mark.parametrize("path", CHANGES)
def test_other_users_and_pages_without_their_token_change_nothing(team: Live, path: str) -> None:
    bob = team.add_user("bob")
    assert post(team, ADMIN + path, {"name": "x", "role": "admin", "password": "long enough"}, bob).status == 403
    assert post(team, ADMIN + path, csrf="").status == 403
    assert post(team, ADMIN + path, csrf=csrf_of("another session")).status == 403
    assert [row.name for row in team.services.users.list(team.services.logons.of_token(TOKEN))] == ["bob"]


def test_a_server_for_one_user_has_no_page_of_users(live: Live) -> None:
    assert "/console/admin/users" not in get(live, ADMIN + "/plans").text
    assert get(live, ADMIN + "/users").status == 404
    assert get(live, ADMIN).headers["location"] == ADMIN + "/plans"


def test_users_are_added_changed_and_removed(team: Live) -> None:
    answer = post(team, ADMIN + "/users", {"name": "carol", "password": "a good password", "role": "user"})
    assert (answer.status, answer.headers["location"]) == (303, ADMIN + "/users")
    assert "carol" in words(get(team, ADMIN + "/users"))
    assert post(team, ADMIN + "/users/carol/role", {"role": "admin"}).status == 303
    assert post(team, ADMIN + "/users/carol/password", {"password": "a better password"}).status == 303
    assert [(one["name"], one["role"]) for one in team.call("GET", "/users").json()] == [("carol", "admin")]
    assert post(team, ADMIN + "/users/carol/role", {"role": "user"}).status == 409  # the last administrator
    assert post(team, ADMIN + "/users/carol/role", {"role": "king"}).status == 400
    assert post(team, ADMIN + "/users/dave/role", {"role": "user"}).status == 404
    post(team, ADMIN + "/users", {"name": "erin", "password": "a good password", "role": "user"})
    assert post(team, ADMIN + "/users/erin/remove").status == 303
    assert [one["name"] for one in team.call("GET", "/users").json()] == ["carol"]
    for secret in ("a good password", "a better password"):
        assert all(secret not in get(team, ADMIN + path).text for path in ("/users", "/audit"))


def test_a_token_is_shown_once(team: Live) -> None:
    made = post(team, ADMIN + "/tokens", {"user": "alice", "name": "ci", "scope": "read", "days": "7"})
    assert made.status == 200
    text = made.text.split("<code>")[1].split("</code>")[0]
    assert team.call("GET", "/execs", token=text).status == 200
    assert text not in get(team, ADMIN + "/tokens").text
    [row] = team.call("GET", "/tokens").json()
    assert row["name"] == "ci" and "ci" in words(get(team, ADMIN + "/tokens"))
    assert post(team, ADMIN + "/tokens", {"user": "alice", "name": "ci", "scope": "read", "days": "x"}).status == 400
    assert post(team, ADMIN + "/tokens/revoke", {"user": "alice", "id": row["id"]}).status == 303
    assert team.call("GET", "/execs", token=text).status == 401


def test_plans_go_through_the_form_unchanged() -> None:
    written = {"plans": [
        {"name": "research", "weight": 2.0, "max": 8, "plans": [{"name": "vision", "user_max": 3, "reserved": 2}]},
        {"name": "night", "policy": "priority", "reclaim_grace": 30.5},
    ]}
    tree = plans.parse(written)
    assert plans.parse(document_of(rows_of(tree))) == tree


def test_the_form_adds_removes_and_saves_plans(live: Live) -> None:
    fields = rows(("training", {"weight": "2"}), ("inference", {}))
    more = post(live, ADMIN + "/plans/rows", {**fields, "parent": "training", "name": "night"}).text
    assert 'value="training/night"' in more and more.index("training/night") < more.index('value="inference"')
    fields = rows(("training", {"weight": "2"}), ("training/night", {"max": "1"}), ("inference", {}))
    assert post(live, ADMIN + "/plans", {**fields, "remove": "inference"}).status == 303
    assert live.call("GET", "/resplans/resplantree").json()["childTreeDto"] == [
        {"id": "training", "pid": "local", "weight": 2.0,
         "childTreeDto": [{"id": "night", "pid": "training", "max": 1}]},
    ]
    assert 'value="2"' in get(live, ADMIN + "/plans").text
    wrong = post(live, ADMIN + "/plans", rows(("a", {"weight": "<b>"})))
    assert wrong.status == 400 and "weight must be a number" in words(wrong) and "<b>" not in wrong.text


def test_the_preview_is_what_the_scheduler_then_does(live: Live) -> None:
    first = live.submitted("--exec-start PyTorch --model-main main.py --consumer /local/a")
    second = live.submitted("--exec-start PyTorch --model-main main.py --consumer /local/b")
    live.call("PUT", "/resplans/resplantree", b'{"plans": [{"name": "a"}, {"name": "b"}]}', JSON)
    names, slots = {first: ("local", "a"), second: ("local", "b")}, cpu_slots(4)
    live.supervisor.held = [SlotPlace(slot, (Holder(first if at < 2 else second),)) for at, slot in enumerate(slots)]
    live.supervisor.jobs = [
        SchedulerJob(name, "alice", "cpu", plan, 0.0, most=4, elastic=True, running=True,
                     slots=tuple(slot.id for slot in slots[at * 2 : at * 2 + 2]),
                     held=tuple(slot.id for slot in slots[at * 2 : at * 2 + 2]))
        for at, (name, plan) in enumerate(names.items())
    ]
    fields = rows(("a", {"weight": "3"}), ("b", {}))
    shown = words(post(live, ADMIN + "/plans/preview", fields))
    document = {"plans": [{"name": "a", "weight": 3}, {"name": "b"}]}
    told = live.call("POST", "/resplans/preview", json.dumps(document).encode(), JSON).json()
    forecast = {one["id"]: one["slotsThen"] for one in told["execs"]}
    # Nothing was changed yet.
    assert "weight" not in live.call("GET", "/resplans/resplan/a").json()
    assert post(live, ADMIN + "/plans", fields).status == 303
    jobs = {job.exec_id: job for job in live.supervisor.jobs}
    for _ in range(2):  # one job gives up a slot, then the other one gets it
        decision = decide(live.supervisor.machine, live.services.plans.tree, jobs.values(), time.monotonic())
        for name, given in decision.resize.items():
            ids = tuple(slot.id for slot in given)
            jobs[name] = replace(jobs[name], slots=ids, held=ids)
    assert {name: len(job.slots) for name, job in jobs.items()} == forecast == {first: 3, second: 1}
    assert f"{first} alice /local/a /local/a 2 3" in shown and f"{second} alice /local/b /local/b 2 1" in shown
    assert "cpu /local/a 2 3 2 3" in shown


def test_usage_is_a_table_a_chart_and_a_file(live: Live) -> None:
    assert "No run has held a slot" in words(get(live, ADMIN + "/usage"))
    exec_id = live.submitted()
    live.run_on(exec_id, "cpu-0", "cpu-1")
    with live.database._write_engine.begin() as connection:  # an hour ago, which may be in the month before
        connection.exec_driver_sql("UPDATE holdings SET since = since - 3600")
    month = time.strftime("%Y-%m", time.gmtime(time.time()))
    answer = get(live, ADMIN + "/usage.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="usage.csv"'
    head, *lines = answer.text.splitlines()
    assert head == "month,user,slot_hours"
    cells = [line.split(",") for line in lines]
    assert {user for _, user, _ in cells} == {"alice"} and cells[-1][0] == month
    assert sum(float(hours) for *_, hours in cells) == pytest.approx(2.0, abs=0.1)
    chart = get(live, ADMIN + "/usage.json").json()
    assert [series["name"] for series in chart["series"]] == ["alice"]
    assert sum(chart["series"][0]["y"]) == pytest.approx(2.0, abs=0.1) and len(chart["series"][0]["x"]) == 12
    assert month in words(get(live, ADMIN + "/usage"))


def test_the_audit_log_is_filtered_and_paged(team: Live) -> None:
    bob = team.add_user("bob")
    team.submitted("--exec-start PyTorch --model-main main.py", token=bob)
    team.call("PUT", "/resplans/resplan/x", b"{}", token=bob)
    for _ in range(60):
        post(team, ADMIN + "/plans", rows(("a", {})))
    shown = words(get(team, ADMIN + "/audit?user=bob&action=exec."))
    assert "exec.submit" in shown and "done" in shown and "plan.put" not in shown.partition("Outcome Code")[2]
    assert "plan.put" in words(get(team, ADMIN + "/audit?user=bob&outcome=refused"))
    first = get(team, ADMIN + "/audit?action=plan.replace").text
    assert first.count("<td>plan.replace</td>") == 50 and "start=50" in first and "Later records" not in first
    second = get(team, ADMIN + "/audit?action=plan.replace&start=50").text
    assert "Later records" in second and "Earlier records" not in second
    assert "No records match" in words(get(team, ADMIN + "/audit?begin=2100-01-01"))
    assert get(team, ADMIN + "/audit?begin=yesterday").status == 400
    assert get(team, ADMIN + "/audit?outcome=good").status == 400
    assert '<option value="refused" selected>refused: ' in get(team, ADMIN + "/audit?outcome=refused").text
    told = team.call("GET", "/audit?user=bob&length=1").json()
    assert [(one["user"], one["action"]) for one in told] == [("bob", "plan.put")]
    assert team.call("GET", "/audit", token=bob).error == (403, "auth.admin_only")


def test_texts_of_records_are_escaped_and_cut_lines_are_left_out(team: Live) -> None:
    team.call("DELETE", "/connections/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    path = Path(team.settings.paths.audit)
    path.write_bytes(path.read_bytes() + b'{"time": "2026-01-0')
    text = get(team, ADMIN + "/audit").text
    assert "&lt;script&gt;alert(1)" in text and "<script>alert" not in text


def test_older_files_of_the_audit_log_are_read(team: Live) -> None:
    team.call("DELETE", "/connections/none")
    path = Path(team.settings.paths.audit)
    path.rename(path.with_name(path.name + ".1"))
    assert "connection.remove" in words(get(team, ADMIN + "/audit"))


def test_health_shows_loops_and_what_the_checks_find(live: Live) -> None:
    live.services.health.examine = lambda: [Finding("disk", PROBLEM, "the disk is <full>", "buy a disk")]
    shown = words(get(live, ADMIN + "/health"))
    assert "ready" in shown and "Background loops" in shown
    part = get(live, ADMIN + "/health/findings", part=True)
    assert "problem disk the disk is <full> buy a disk" in words(part) and "<full>" not in part.text
    assert live.call("GET", "/doctor").json() == [
        {"check": "disk", "level": "problem", "what": "the disk is <full>", "do": "buy a disk"},
    ]
