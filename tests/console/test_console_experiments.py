"""The pages of the experiment builder: forms without scripts, sharing, hostile texts and uploads."""

from __future__ import annotations

import html
import json
import re

import pytest
from live_server import Answer, Live, multipart, tar
from planning import CODE, Planning, accepted
from visitor import Page, Visitor, entered

from local_backend.console import places
from local_backend.console.builder_form import form_of_draft, read
from local_backend.limited_work import WorkLimits
from local_backend.services.experiment_plans import PlanDraft, PlanPart
from local_backend.store import execs
from local_backend.submit import left_out

HOSTILE = '"><script>alert(1)</script>'
FORM = {"name": "first", "part-rows": "1", "part-1-definition": "alice/digits", "data-rows": ""}


def change(visitor: Visitor, path: str, values: dict[str, str] | None = None) -> Answer:
    """Send a form of a page."""
    return visitor.post(path, {**(values or {}), "csrf": visitor.csrf})


def upload(visitor: Visitor, files: dict[str, bytes], csrf: str | None = None, **fields: str) -> tuple[int, str]:
    """Send the form that uploads code as a script of the page does; return status and text."""
    values = {"new-name": "digits", "new-framework": "PyTorch", "new-command": "train.py", **fields}
    parts = [(name, None, value.encode()) for name, value in values.items()]
    parts += [("folder", name, content) for name, content in files.items()]
    body, kind = multipart([*parts, ("archive", "", b"")])
    token = visitor.csrf if csrf is None else csrf
    answer = visitor.call("POST", places.DEFINITIONS, body, {
        "Content-Type": kind, "HX-Request": "true", **({"X-CSRF-Token": token} if token else {})})
    return answer.status, answer.text


def test_a_folder_is_uploaded_and_chosen_in_the_builder(live: Live, visitor: Visitor) -> None:
    status, text = upload(visitor, CODE, builder="1")
    assert status == 200 and "use-alice/digits" in text
    typed = {"part-rows": "3", "part-3-count": "2", "name": "typed before", "op": "use-alice/digits"}
    text = change(visitor, places.EXPERIMENT_FORM, typed).text
    assert 'value="typed before"' in text and re.search(r'<option value="alice/digits" selected>', text)
    code = Planning(live).get("/definitions/digits/code").json()
    assert sorted(file["path"] for file in code["files"]) == ["digits/lib/net.py", "digits/train.py"]


def test_an_upload_leads_to_the_page_of_the_definition_outside_of_the_builder(visitor: Visitor) -> None:
    assert upload(visitor, CODE)[0] == 204
    page = visitor.get(f"{places.DEFINITIONS}/alice/digits")
    assert page.status == 200 and "LAYERS = 3" in page.text


def test_uploads_with_bad_paths_or_without_a_token_leave_nothing(live: Live, visitor: Visitor) -> None:
    for name in ("../../evil.py", "/etc/evil.py", "a/../../evil.py", "a/\u202eevil.py", "..\\..\\evil/x.py"):
        status, text = upload(visitor, {"digits/train.py": b"1", name: b"x"})
        assert status == 400 and "refused" in text, name
    assert upload(visitor, {"digits/train.py": b"1", "digits/Train.py": b"2"})[0] == 400, "one file on some disks"
    assert upload(visitor, CODE, csrf="")[0] == 403
    assert upload(visitor, CODE, csrf="x")[0] == 403
    assert live.nothing_left()


def test_the_form_creates_and_runs_without_scripts(live: Live, visitor: Visitor) -> None:
    Planning(live).defined()
    form = {**FORM, "part-1-nodes": "elastic", "part-1-count": "2", "part-1-hardware": "XS", "op": "run", "key": "k"}
    answer = change(visitor, places.EXPERIMENTS, form)
    assert (answer.status, answer.headers["location"]) == (303, f"{places.EXPERIMENTS}/alice/first")
    [exec_id] = live.database.read(execs.all_ids)
    assert live.row(exec_id).framework == "edtPyTorch" and live.row(exec_id).workload.resources.num_worker == 2
    page = visitor.get(f"{places.EXPERIMENTS}/first")
    assert page.headers["location"] == f"{places.EXPERIMENTS}/alice/first"
    assert exec_id in visitor.get(f"{places.EXPERIMENTS}/alice/first").text
    key = Page(visitor.get(f"{places.EXPERIMENTS}/alice/first").text).field("key")
    for _ in range(2):  # a double click
        assert change(visitor, f"{places.EXPERIMENTS}/alice/first/run", {"version": "1", "key": key}).status == 303
    assert len(live.database.read(execs.all_ids)) == 2


def test_mistakes_come_back_beside_their_fields(live: Live, visitor: Visitor) -> None:
    Planning(live).defined()
    form = {**FORM, "name": "a b", "part-1-count": "x", "part-1-command": "none.py", "op": "save"}
    answer = change(visitor, places.EXPERIMENTS, form)
    assert answer.status == 400
    wrong = {one["name"] for one in Page(answer.text).all("input") if one.get("aria-invalid")}
    assert wrong == {"name", "part-1-count", "part-1-command"}
    assert Planning(live).get("/experiments").json() == []
    empty = visitor.get(places.NEW_EXPERIMENT)
    assert empty.status == 200 and "aria-invalid" not in empty.text, "an untouched form has no mistakes"


def test_rows_come_and_go_and_keep_their_keys(visitor: Visitor) -> None:
    text = change(visitor, places.EXPERIMENT_FORM, {**FORM, "op": "add-data"}).text
    assert 'name="data-1-path"' in text
    rows = {**FORM, "data-rows": "1 2", "data-1-path": "one", "data-2-path": "two", "op": "drop-data-1"}
    text = change(visitor, places.EXPERIMENT_FORM, rows).text
    assert 'name="data-1-path"' not in text and 'name="data-2-path"' in text and 'value="two"' in text


def test_the_page_shows_the_same_experiment_as_a_command(live: Live, visitor: Visitor) -> None:
    mine = Planning(live)
    mine.defined()
    text = change(visitor, places.EXPERIMENT_FORM, {**FORM, "part-1-device": "cpu", "part-1-count": "1"}).text
    command = next(one["data-copy"] for one in Page(text).all("button") if "data-copy" in one)
    body = json.loads(command.split("<<'EOF'\n")[1].split("\nEOF")[0])
    assert body["definitions"] == [{"definition": "alice/digits", "numWorker": 1, "device": "cpu"}]
    assert accepted(mine.post("/experiments", body))["name"] == "first"


def test_a_saved_experiment_is_edited_as_it_is() -> None:
    data = [
        {"type": "fs", "location": {"paths": "mnist"}},
        {"type": "fs", "location": {"volume": "lake", "paths": "train"}},
        {"type": "connection", "connection": {"name": "shop"}, "location": {"bucket": "b", "path": "p"},
         "access": "download", "target": {"volume": "lake"}},
        {"type": "connection", "connection": {"name": "sales"}, "location": {"table_name": "orders"}},
    ]
    parts = [
        PlanPart("alice/digits", 2, "train.py", "elastic", 4, 2, "gpu", "alice/large", 3, "1g.10gb"),
        PlanPart("digits", hardware={"nodes": {"gpu": {"num_gpu": "1"}, "mem": {"size": "8g"}}}),
        PlanPart("digits", hardware={"nodes": {"num_nodes": 3, "cpu": {"units": "2"}}}),
    ]
    draft = PlanDraft("first", parts, "about", data, True, "all.py", ["bob"])
    reading = read(form_of_draft(draft))
    assert reading.draft == draft and not reading.problems


def test_pages_show_only_what_is_shared(team: Live) -> None:
    bob, carol = Planning(team).as_user("bob"), Planning(team).as_user("carol")
    bob.defined("hidden-code")
    bob.plan("hidden-plan", [{"definition": "hidden-code"}])
    bob.defined("open-code", sharedWith=["carol"])
    visitor = entered(team, carol.token)
    for path in (places.EXPERIMENTS, places.DEFINITIONS, places.NEW_EXPERIMENT, places.HARDWARE):
        assert "hidden-" not in visitor.get(path).text, path
    assert "open-code" in visitor.get(places.DEFINITIONS).text
    assert visitor.get(f"{places.EXPERIMENTS}/bob/hidden-plan").status == 404
    assert visitor.get(f"{places.DEFINITIONS}/bob/hidden-code").status == 404
    assert change(visitor, f"{places.EXPERIMENTS}/bob/hidden-plan/run").status == 404
    assert change(visitor, f"{places.DEFINITIONS}/bob/open-code/delete").status == 403


def test_hostile_texts_are_escaped(live: Live, visitor: Visitor) -> None:
    mine = Planning(live)
    mine.defined(description=HOSTILE, command=f"train.py {HOSTILE}", archive=tar({
        "digits/train.py": HOSTILE.encode(), 'digits/"><b>x': b"1"}))
    accepted(mine.plan(description=HOSTILE, command=f"train.py {HOSTILE}"))
    accepted(mine.post("/hardware", {"name": "h", "description": HOSTILE, "hardwareSpec": {}}))
    for path in (places.EXPERIMENTS, places.DEFINITIONS, places.HARDWARE, f"{places.NEW_EXPERIMENT}?of=first",
                 f"{places.EXPERIMENTS}/alice/first", f"{places.DEFINITIONS}/alice/digits"):
        text = visitor.get(path).text
        assert "alert(1)" in text and "<script>alert" not in text and "<b>x" not in text, path


def test_hardware_is_saved_and_deleted_on_its_page(live: Live, visitor: Visitor) -> None:
    assert change(visitor, places.HARDWARE, {"name": "tiny", "gpus": "0", "memory": "1g"}).status == 303
    found = Planning(live).get("/hardware/tiny").json()
    assert found["hardwareSpec"] == {"nodes": {"gpu": {"num_gpu": "0"}, "mem": {"size": "1g"}}} and found["usable"]
    assert change(visitor, f"{places.HARDWARE}/alice/tiny/delete").status == 303
    assert Planning(live).get("/hardware/tiny").status == 404


ELASTIC_CODE = {
    "digits/network.py": b"from fabric_model import FabricModel\n", "digits/train.py": b"import network\n",
    "digits/.dlicmdignore": b"data/\n*.log\n!keep.log\n", "digits/data/digits.csv": b"1\n", "digits/old.log": b"x",
    "digits/keep.log": b"x", "digits/.git/config": b"x", "digits/.netrc": b"password", "digits/env/pyvenv.cfg": b"x",
    "digits/env/lib.py": b"x",
}


def test_an_upload_shows_the_program_that_was_found_and_leaves_out_what_is_ignored(
    live: Live, visitor: Visitor
) -> None:
    status, text = upload(visitor, ELASTIC_CODE, **{"new-framework": "", "new-command": "", "builder": "1"})
    assert status == 200
    form = change(visitor, places.EXPERIMENT_FORM, {"op": "use-alice/digits"}).text
    assert "PyTorch, elastic (FabricModel); runs <code>train.py</code>" in form
    assert "data/" in text and "old.log" in text and ".netrc" in text, "the page names what is left out"
    mine = Planning(live)
    assert sorted(file["path"] for file in mine.get("/definitions/digits/code").json()["files"]) == [
        "digits/keep.log", "digits/network.py", "digits/train.py"]
    found = mine.get("/definitions/digits").json()
    assert (found["framework"], found["program"], found["command"]) == ("edtPyTorch", "train.py", "")
    page = visitor.get(f"{places.DEFINITIONS}/alice/digits").text
    assert "<code>train.py</code>" in page and "found in the code" in page


@pytest.mark.parametrize("rules", [
    b"*a" * 40 + b"b\n", b"a/" + b"**/a/" * 30 + b"b\n", b"#!include:.dlicmdignore\n", b"#!include:many.txt\n" * 5000,
], ids=["stars", "folders", "itself", "many"])
def test_rules_that_need_hours_or_all_memory_are_refused(
    live: Live, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, rules: bytes
) -> None:
    monkeypatch.setattr(left_out, "_LIMITS", WorkLimits(seconds=1, memory=128 << 20))
    files = {"digits/train.py": b"1", "digits/" + "a" * 200 + ".txt": b"1", "digits/" + "a/" * 40 + "x": b"1",
             "digits/many.txt": b"x\n" * 200_000, "digits/.dlicmdignore": rules}
    status, text = upload(visitor, files)
    assert status == 400 and ".dlicmdignore" in text and live.nothing_left()


def test_an_upload_without_a_clear_program_is_refused_in_the_words_of_the_page(visitor: Visitor) -> None:
    files = {"digits/a.py": b"1", "digits/b.py": b"2"}
    status, text = upload(visitor, files, **{"new-command": ""})
    assert status == 400 and "execution command" in text and "--" not in text
    status, text = upload(visitor, {**files, "digits/.dlicmdignore": b"\xff"}, **{"new-command": "a.py"})
    assert status == 400 and ".dlicmdignore" in text


def test_pages_name_no_options_of_the_command_line(live: Live, visitor: Visitor) -> None:
    Planning(live).defined()
    rows = {**FORM, "data-rows": "1", "data-1-kind": "folder", "data-1-path": "missing", "part-1-device": "gpu"}
    answer = change(visitor, places.EXPERIMENTS, {**rows, "op": "save"})
    told = "".join(re.findall(r'role="alert">([^<]*)<', answer.text))
    assert answer.status == 400 and "does not exist" in told and "--" not in told
    answer = change(visitor, places.EXPERIMENTS, {**FORM, "part-1-device": "gpu", "op": "save"})
    assert answer.status == 400 and "choose CPU as the device" in answer.text and "--allow-cpu" not in answer.text


def test_an_empty_name_is_named(live: Live, visitor: Visitor) -> None:
    Planning(live).defined()
    answer = change(visitor, places.EXPERIMENTS, {**FORM, "name": "", "op": "save"})
    assert answer.status == 400 and "the name is empty" in answer.text


def test_elastic_code_gets_the_usual_number_of_nodes(live: Live, visitor: Visitor) -> None:
    mine = Planning(live)
    mine.defined(framework="edtPyTorch")
    slots = len(live.services.execs.supervisor.machine.slots)
    accepted(mine.plan("digits"))
    row = live.row(mine.run("digits")["parts"][0]["execId"])
    assert row.workload.resources.num_worker == min(2, slots)
    assert row.app_name == "digits", "the name of experiment and definition once"


def test_hardware_without_a_number_of_nodes_has_the_usual_one(live: Live) -> None:
    mine = Planning(live)
    mine.defined()
    usual = min(2, len(live.services.execs.supervisor.machine.slots))
    for nodes, expected in (({}, usual), ({"num_nodes": 1}, 1)):
        part = {"definition": "digits", "nodes": "multi", "hardware": {"nodes": {"mem": {"size": "1g"}, **nodes}}}
        accepted(mine.plan("digits", definitions=[part]))
        row = live.row(mine.run("digits")["parts"][0]["execId"])
        assert row.workload.resources.num_worker == expected


def test_a_folder_is_chosen_by_looking_into_it(live: Live, visitor: Visitor) -> None:
    (live.settings.data_fs / "mnist" / "train-1").mkdir(parents=True)
    (live.settings.data_fs / "mnist" / "a.csv").write_text("1")
    form = {**FORM, "data-rows": "1", "data-1-kind": "folder"}
    text = change(visitor, places.EXPERIMENT_FORM, {**form, "op": "browse-1"}).text
    ops = [one["value"] for one in Page(text).all("button") if one.get("name") == "op"]
    assert "path-1:mnist" in ops
    text = change(visitor, places.EXPERIMENT_FORM, {**form, "browsing": "1", "op": "path-1:mnist"}).text
    ops = [one["value"] for one in Page(text).all("button") if one.get("name") == "op"]
    assert Page(text).field("data-1-path") == "mnist"
    assert {"path-1:", "path-1:mnist/train-1", "path-1:mnist/a.csv"} <= {*ops}
    form |= {"browsing": "1", "data-1-path": "mnist"}
    assert "path-1:mnist/train-1" not in change(visitor, places.EXPERIMENT_FORM, {**form, "op": "browse-1"}).text
    text = change(visitor, places.EXPERIMENT_FORM, {**form, "data-1-path": "nowhere"}).text
    assert "does not exist" in text


def test_a_team_server_opens_no_folder_outside_of_its_data(team: Live) -> None:
    visitor = entered(team, team.add_user("bob"))
    form = {**FORM, "data-rows": "1", "data-1-kind": "folder", "browsing": "1"}
    for path in ("/", "/etc", "../..", "/root"):
        text = change(visitor, places.EXPERIMENT_FORM, {**form, "data-1-path": path}).text
        assert not re.search(r'value="path-1:[^"]*(passwd|etc)"', text), path


def test_data_leads_to_the_builder(live: Live, visitor: Visitor) -> None:
    (live.settings.data_fs / "mnist").mkdir(parents=True)
    page = Page(visitor.get(f"{places.DATA_FILES}?path=mnist").text)
    [link] = [one["href"] for one in page.all("a") if one.get("href", "").startswith(places.NEW_EXPERIMENT)]
    assert Page(visitor.get(link).text).field("data-1-path") == "mnist"


def test_runs_of_several_definitions_are_compared_from_the_page_of_their_experiment(
    live: Live, visitor: Visitor
) -> None:
    mine = Planning(live)
    mine.defined()
    accepted(mine.plan(name="one"))
    accepted(mine.plan(name="two", definitions=[{"definition": "digits"}, {"definition": "digits"}]))
    mine.run("one")
    first, second = (part["execId"] for part in mine.run("two")["parts"])
    link = re.search(r'href="([^"]*)">Compare<', visitor.get(f"{places.EXPERIMENTS}/alice/two").text)
    assert link
    assert html.unescape(link[1]) == f"{places.RUNS}/compare?id={first}&id={second}"
    assert ">Compare<" not in visitor.get(f"{places.EXPERIMENTS}/alice/one").text


def test_a_form_that_edits_saves_a_version_and_creates_nothing(live: Live, visitor: Visitor) -> None:
    mine = Planning(live)
    mine.defined()
    accepted(mine.plan())
    edited = visitor.get(f"{places.NEW_EXPERIMENT}?of=alice/first").text
    assert ">Save and run<" in edited and ">Create and run<" not in edited
    changed = change(visitor, places.EXPERIMENT_FORM, {**FORM, "editing": "alice/first"}).text
    assert ">Save and run<" in changed
    assert ">Create and run<" in change(visitor, places.EXPERIMENT_FORM, FORM).text


def test_the_nodes_of_a_definition_are_named(live: Live, visitor: Visitor) -> None:
    Planning(live).defined(framework="PyTorch")
    empty = change(visitor, places.EXPERIMENT_FORM, FORM).text
    assert 'data-nodes="single"' in empty and "from the definition (single node)" in empty
    kept = change(visitor, places.EXPERIMENT_FORM, {**FORM, "part-1-count": "2"}).text
    assert "data-nodes" not in kept, "a field with a value stays visible"


def test_the_page_of_an_experiment_shows_its_data_as_words_and_the_runs_that_were_edited(
    live: Live, visitor: Visitor
) -> None:
    mine = Planning(live)
    mine.defined()
    (live.settings.data_fs / "mnist").mkdir(parents=True)
    accepted(mine.plan(dataSource=[{"type": "fs", "location": {"paths": "mnist"}}]))
    first = mine.run()["parts"][0]["execId"]
    made = change(visitor, f"{places.RUNS}/{first}/again", {"name": "next", "workers": "1", "arguments": "--epochs 9"})
    second = made.headers["location"].rpartition("/")[2]
    live.run_on(second, "cpu-0")
    live.say(second, {"loss": 0.25, "lastMetrics": {"f1": {"value": 1, "step": 1, "stepUnit": "step"}}})
    page = visitor.get(f"{places.EXPERIMENTS}/alice/first").text
    row = page.partition(f'href="{places.RUNS}/{second}">')[2].partition("</tr>")[0]
    assert re.findall(r'<span class="nowrap">([^<]*)<', row) == ["epochs = 9", "loss 0.25"]
    assert f'compare?id={second}&amp;id={first}">Compare 2 runs<' in page
    assert "folder mnist" in page and "&#34;type&#34;" not in page
    assert f"{places.RUNS}/{second}" in page and f"repeats <a href=\"{places.RUNS}/{first}\"" in page
    runs = mine.get("/experiments/first/runs").json()
    assert [one["parts"][0]["execId"] for one in runs] == [second, first]
    for run in (first, second):
        assert f'href="{places.EXPERIMENTS}/alice/first"' in visitor.get(f"{places.RUNS}/{run}").text
