"""The pages of one run: curves, logs, settings, code, results, lineage, and its actions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from live_server import Live
from page_desk import get, post, words
from visitor import Page

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, PENDING, RUNNING
from local_backend.console import places
from local_backend.curves.book import Book
from local_backend.curves.file import CurveFile
from local_backend.curves.model import RESOURCES, SECOND, MetricValue
from local_backend.curves.points import PointWriter
from local_backend.services import log_windows
from local_backend.services.access import Caller
from local_backend.store import execs
from local_backend.store.holdings import SlotPart

EVIL = "<img src=x onerror=alert(1)>"
ELASTIC = "--exec-start edtPyTorch --numWorker 2 --model-main main.py"


def place(run: str, rest: str = "") -> str:
    return f"{places.RUNS}/{run}{rest}"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def curves(live: Live, run: str, *names: str, count: int = 20) -> None:
    """Write curves as a runner does."""
    book = Book()
    for step in range(1, count + 1):
        for name in names:
            book.add("dlicmd.log", MetricValue(name, 1 / step, float(step), "step"))
    live.paths(run).state.mkdir(parents=True, exist_ok=True)
    CurveFile(live.paths(run).curves, book, 0.0)


def finished(live: Live, run: str) -> None:
    live.run_on(run, "cpu-0")
    live.move(run, FINISHED)


@pytest.fixture
def run(live: Live) -> str:
    return live.submitted(f"--exec-start PyTorch --model-main main.py '--appName={EVIL}'",
                          files={"main.py": f"print('{EVIL}')\n".encode()})


def test_every_tab_shows_the_run_and_escapes_its_texts(live: Live, run: str) -> None:
    curves(live, run, EVIL, f"validation {EVIL}")
    write(live.paths(run).capture("task12n-1", "stdout", False), f"{EVIL}\n".encode())
    write(live.paths(run).root / f"{EVIL.replace('/', '')}.txt", b"x")
    for tab in ("", "/logs", "/settings", "/code", "/results", "/lineage", "/again", "/parts/head", "/parts/charts"):
        answer = get(live, place(run, tab))
        assert answer.status == 200, (tab, answer.text)
        assert "<img src=x" not in answer.text and "onerror=alert(1)>" not in answer.text
    assert EVIL in words(get(live, place(run, "/code"))).replace("&lt;", "<")


def test_the_cpu_and_the_memory_in_use_have_charts(live: Live, run: str) -> None:
    finished(live, run)
    assert "CPU cores in use" not in words(get(live, place(run))), "a run of an earlier version"
    book = Book()
    for name, value in (("cpu", 1.5), ("memory", 3 * 2.0**30), ("cpu worker 1", 0.5), ("memory worker 1", 2.0**30)):
        book.add(RESOURCES, MetricValue(name, value, 3.0, SECOND, 1.7e9 + 3))
    CurveFile(live.paths(run).resources, book, 1.7e9)
    charts = [one["data-chart"] for one in Page(get(live, place(run)).text).all("div") if
              "/resources" in one.get("data-chart", "")]
    cpu, memory = (json.loads(get(live, f"{chart}&width=100").body) for chart in charts)
    assert [(one["name"], one["x"], one["y"]) for one in cpu["series"]] == [
        ("all together", [3], [1.5]), ("worker 1", [3], [0.5])]
    assert [one["y"] for one in memory["series"]] == [[3.0], [1.0]]
    assert [one["y"] for one in (cpu, memory)] == [{"label": "cores", "zero": True}, {"label": "GiB", "zero": True}]
    timed = json.loads(get(live, f"{charts[0]}&width=100&axis=time").body)
    assert (timed["x"]["kind"], timed["series"][0]["x"]) == ("time", [1.7e9 + 3])


def test_a_run_of_another_user_does_not_exist(team: Live) -> None:
    run = team.submitted(token=team.add_user("bob"))
    eve = team.add_user("eve")
    for tab in ("", "/logs", "/settings", "/code", "/results", "/lineage", "/again", "/slots", "/curves?width=100",
                "/resources?kind=cpu&width=100", "/results/list",
                "/logs/window?log=launcher", "/logs/search?log=launcher&text=x", "/parts/head", "/parts/charts"):
        assert get(team, place(run, tab), eve).error == (400, "exec.not_found"), tab
    for change in ("stop", "delete", "again", "save"):
        assert post(team, place(run, f"/{change}"), {"name": "x"}, eve).error == (400, "exec.not_found"), change
    assert not team.row(run).stop_requested


def test_changes_need_the_csrf_token(live: Live, run: str) -> None:
    for change in ("stop", "delete", "again", "save"):
        assert post(live, place(run, f"/{change}"), csrf="wrong").error == (403, "console.csrf")
    assert not live.row(run).stop_requested and not live.row(run).deleted


def test_stop_and_delete(live: Live, run: str) -> None:
    live.run_on(run, "cpu-0")
    assert "Stop" in words(get(live, place(run)))
    assert post(live, place(run, "/stop")).headers["location"] == place(run)
    assert live.row(run).stop_requested
    assert post(live, place(run, "/delete")).headers["location"] == places.RUNS
    assert live.row(run).deleted and get(live, place(run)).status == 400


def test_run_again_submits_the_same(live: Live, run: str) -> None:
    made = post(live, place(run, "/again"))
    assert made.status == 303
    again = live.row(made.headers["location"].rpartition("/")[2])
    before = live.row(run)
    assert (again.app_name, again.bundle, again.args, again.num_worker) == (
        before.app_name, before.bundle, before.args, before.num_worker)
    assert again.workload.repeats == run
    assert f"({run})" in words(get(live, place(again.id, "/lineage")))
    assert again.id in words(get(live, place(run, "/lineage")))


def test_edit_and_run_changes_name_workers_and_arguments(live: Live) -> None:
    run = live.submitted(f"{ELASTIC} --epochs 3 --api-token abc")
    form = get(live, place(run, "/again"))
    assert "--epochs 3 --api-token ***" in words(form) and "abc" not in form.text
    answer = post(live, place(run, "/again"), {
        "name": "wide", "workers": "4", "arguments": "--epochs 5 --api-token ***"})
    row = live.row(answer.headers["location"].rpartition("/")[2])
    assert (row.app_name, row.num_worker) == ("wide", 4)
    assert row.workload.program.arguments == ("--epochs", "5", "--api-token", "abc")
    assert "abc" not in row.args and "***" in row.args


@pytest.mark.parametrize(("fields", "said"), [
    ({"name": "x", "workers": "0", "arguments": ""}, "workers"),
    ({"name": "\x07", "workers": "1", "arguments": ""}, "the name"),
    ({"name": "x", "workers": "7", "arguments": ""}, "at most 1 worker"),
])
def test_a_wrong_change_is_explained_and_the_form_stays(
    live: Live, run: str, fields: dict[str, str], said: str
) -> None:
    answer = post(live, place(run, "/again"), fields)
    assert answer.status == 400 and said in words(answer) and 'name="arguments"' in answer.text


def test_rest_runs_an_exec_again(team: Live) -> None:
    bob, eve = team.add_user("bob"), team.add_user("eve", "admin")
    run = team.submitted(f"{ELASTIC} --epochs 3", token=bob)
    body = json.dumps({"name": "next", "workers": 3, "arguments": ["--epochs", "9"]}).encode()
    sent = {"Content-Type": "application/json"}
    made = team.call("POST", f"/execs/{run}/again", body, sent, token=bob).json()
    assert (made["appName"], made["numWorker"], made["creator"]) == ("next", 3, "bob")
    assert team.call("POST", f"/execs/{run}/again", b"", token=eve).error == (403, "exec.of_another_user")
    for wrong in ({"workers": "3"}, {"arguments": "x"}, {"name": 1}, {"other": 1}, {"workers": True}):
        answer = team.call("POST", f"/execs/{run}/again", json.dumps(wrong).encode(), sent, token=bob)
        assert answer.error == (400, "body.value"), wrong


def test_edit_and_run_chooses_other_data(live: Live) -> None:
    (live.settings.data_fs / "mnist").mkdir(parents=True)
    run = live.submitted(f"{ELASTIC} --epochs 3")
    form = {"name": "x", "workers": "2", "arguments": "--epochs 3"}
    text = post(live, place(run, "/again/form"), {**form, "data-rows": "", "op": "add-data"}).text
    assert 'name="data-1-path"' in text and "Create folders" not in text
    chosen = {"data-rows": "1", "data-1-kind": "folder", "data-1-path": "mnist"}
    answer = post(live, place(run, "/again"), {**form, **chosen})
    row = live.row(answer.headers["location"].rpartition("/")[2])
    assert row.workload.data.sources[0].path == str((live.settings.data_fs / "mnist").resolve())
    assert json.loads(row.data_source or "") == [{"type": "fs", "location": {"paths": "mnist"}}]
    again = get(live, place(row.id, "/again"))
    assert 'value="mnist"' in again.text, "the form shows the data of the run"
    kept = live.row(post(live, place(row.id, "/again"), form).headers["location"].rpartition("/")[2])
    assert kept.data_source == row.data_source, "a form without data keeps it"
    refused = post(live, place(run, "/again"), {**form, **chosen, "data-1-path": "no"})
    assert refused.status == 400 and "does not exist" in words(refused) and "--create" not in refused.text


@pytest.mark.parametrize(("message", "said"), [
    ("FileNotFoundError: /data/digits.csv.gz not found.", "Choose the data of this run"),
    ("KeyError: 'DATA_DIR'", "Choose the data of this run"),
    ("ModuleNotFoundError: No module named 'sklearn.svm'", "pip install scikit-learn"),
    ("RuntimeError: Found no NVIDIA driver", "no GPU"),
])
def test_a_failed_run_says_what_to_do(live: Live, message: str, said: str) -> None:
    run = live.submitted(ELASTIC)
    live.run_on(run, "cpu-0")
    live.move(run, ERROR, message=message, reason=wire.PROGRAM_FAILED)
    page = get(live, place(run))
    assert said in words(page) and 'id="remedy"' in page.text
    assert ('/again?choose=data#data"' in page.text) == ("data" in said)
    assert "The program reported no metrics." in words(page) and "dlicmd.log" not in page.text


def test_a_failed_run_with_another_error_has_no_advice(live: Live, run: str) -> None:
    assert "No metrics yet." in words(get(live, place(run)))
    live.run_on(run, "cpu-0")
    live.move(run, ERROR, message="ValueError: x", reason=wire.PROGRAM_FAILED)
    assert 'id="remedy"' not in get(live, place(run)).text


def test_a_saved_model_has_what_serving_needs(live: Live, run: str) -> None:
    names = ("model_epoch_5.pth", "model_epoch_final.pth", "model_epoch_final_optimizer_state.pth",
             "model_epoch_5_training_state.snapshot", "notes.txt", "model_epoch_final_ema.pth")
    for name in names:
        write(live.paths(run).model / "train" / name, b"w" * 1000)
    finished(live, run)
    post(live, place(run, "/save"), {"name": "digits"})
    post(live, place(run, "/save"), {"name": "digits", "whole": "1"})
    saved = live.services.model_sources.saved(Caller("alice", True))
    found = {row.version: {path.name for path in live.settings.paths.bundle(row.bundle).rglob("*.*")} for row in saved}
    assert found[1] & {*names} == {"model_epoch_final.pth", "model_epoch_final_ema.pth", "notes.txt"}
    assert found[2] & {*names} == {*names}


def test_a_finished_run_without_a_model_says_where_models_belong(live: Live, run: str) -> None:
    assert 'id="no-model"' not in get(live, place(run)).text
    finished(live, run)
    assert 'id="no-model"' in get(live, place(run)).text
    write(live.paths(run).model / "weights.bin", b"w")
    assert 'id="no-model"' not in get(live, place(run)).text


def test_save_model_makes_a_version_in_the_model_store(live: Live, run: str) -> None:
    assert post(live, place(run, "/save"), {"name": "digits"}).status == 409
    write(live.paths(run).model / "weights.bin", b"w")
    finished(live, run)
    assert "Save model" in words(get(live, place(run)))
    dialog = get(live, place(run)).text.partition('id="save-model"')[2]
    [name] = [one for one in Page(dialog).all("input") if one.get("name") == "name"]
    assert name["value"] == "img-src-x-onerror-alert-1" and re.fullmatch(name["pattern"], name["value"])
    assert post(live, place(run, "/save"), {"name": "digits"}).headers["location"] == f"{places.SAVED}?now=digits%3A1"
    said = get(live, f"{places.SAVED}?now=digits%3A1")
    assert "Saved: version 1 of digits, " in words(said) and place(run) in said.text
    assert "digits, version 1" in words(get(live, place(run, "/lineage")))


# --- curves


def test_curves_come_as_series_of_the_asked_width(live: Live, run: str) -> None:
    curves(live, run, "loss", "val/loss", "lr", count=500)
    assert get(live, place(run)).text.count("data-chart=") == 3  # losses, lr, slots
    found = get(live, place(run, "/curves?metric=loss&metric=val/loss&width=10")).json()
    assert [one["name"] for one in found["series"]] == ["loss", "val/loss"]
    assert all(len(one["x"]) == len(one["y"]) <= 40 for one in found["series"])
    (part,) = get(live, place(run, "/curves?metric=lr&width=100&from=10&to=12")).json()["series"]
    assert part["x"] == [9, 10, 11, 12, 13]


@pytest.mark.parametrize("query", [
    "width=0", "width=99999", "width=x", "width=10&from=5&to=4", "width=10&from=nan", "width=10&axis=wall", "",
])
def test_an_impossible_window_is_refused(live: Live, run: str, query: str) -> None:
    assert get(live, place(run, f"/curves?{query}")).status == 400
    if query:
        assert live.call("GET", f"/execs/{run}/curves?{query}").status == 400


def test_rest_draws_curves_of_all_points(live: Live, run: str) -> None:
    curves(live, run, "loss")
    live.paths(run).points.mkdir()
    writer = PointWriter(live.paths(run).points)
    for step in range(5000):
        writer.add(("dlicmd.log", "loss", "step"), step, float(step == 4321), 1e9 + step)
    writer.flush()
    (curve,) = live.call("GET", f"/execs/{run}/curves?width=50").json()["curves"]
    assert [4321, 1, None] in curve["points"] and len(curve["points"]) <= 200
    (part,) = live.call("GET", f"/execs/{run}/curves?width=50&from=4320&to=4322").json()["curves"]
    assert [point[0] for point in part["points"]] == [4319, 4320, 4321, 4322, 4323]
    assert live.call("GET", f"/execs/{run}/curves?width=50&since=1.0").error == (400, "query.value")


def test_the_axis_is_the_time_of_each_point(live: Live, run: str) -> None:
    book = Book()
    for step, at in ((1.0, 1000.0), (2.0, 1000.5), (3.0, 1000.5), (4.0, None)):
        book.add("dlicmd.log", MetricValue("loss", step, step, "step", at))
    live.paths(run).state.mkdir(parents=True, exist_ok=True)
    CurveFile(live.paths(run).curves, book, 0.0)
    found = get(live, place(run, "/curves?width=50&axis=time")).json()
    (loss,) = found["series"]
    assert found["x"]["kind"] == "time" and loss["y"] == [1, 2, 3]
    assert loss["x"] == pytest.approx([1000, 1000.5, 1000.5], abs=1e-4) and len(set(loss["x"])) == 3
    live.paths(run).points.mkdir()
    writer = PointWriter(live.paths(run).points)
    for step in range(5000):
        writer.add(("dlicmd.log", "loss", "step"), step, float(step == 4321), 2e9 + step)
    writer.flush()
    (curve,) = live.call("GET", f"/execs/{run}/curves?width=50&axis=time").json()["curves"]
    assert [2e9 + 4321, 1, None] in curve["points"] and len(curve["points"]) <= 200
    (part,) = live.call("GET", f"/execs/{run}/curves?width=50&axis=time&from=2000004320&to=2000004322").json()["curves"]
    assert [point[0] - 2e9 for point in part["points"]] == [4319, 4320, 4321, 4322, 4323]


def test_a_link_in_place_of_points_is_not_followed(live: Live, run: str, tmp_path: Path) -> None:
    curves(live, run, "loss")
    PointWriter(tmp_path / "elsewhere").add(("dlicmd.log", "secret", "step"), 1.0, 1.0, None)
    (tmp_path / "elsewhere" / "names.jsonl").write_text('{"n":0,"source":"dlicmd.log","name":"secret","unit":"step"}\n')
    live.paths(run).points.symlink_to(tmp_path / "elsewhere")
    assert "secret" not in get(live, place(run, "/curves?width=50")).text


def test_slots_over_time_have_resizes_as_marks(live: Live) -> None:
    run = live.submitted(ELASTIC)
    live.run_on(run, "cpu-0", "cpu-1")
    live.database.write(lambda c: execs.hold(c, run, [SlotPart("cpu-0", "cpu")], "/local/training"))
    live.move(run, FINISHED)
    found = get(live, place(run, "/slots")).json()
    assert found["x"]["kind"] == "time" and found["series"][0]["y"][:3] == [2, 1, 0]
    assert [mark["text"] for mark in found["marks"]] == ["2 → 1"]


# --- logs


def test_a_window_of_a_log_of_a_gigabyte_reads_little(live: Live, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = live.paths(run).capture("task12n-1", "stdout", False)
    write(file, b"first\nsecond\n")
    with file.open("r+b") as opened:
        opened.seek(1 << 29)
        opened.write(b"\nneedle here\nand more\n")
        opened.seek((1 << 30) - 12)
        opened.write(b"\nbefore\nlast")
    read = 0
    real = log_windows._read

    def counted(opened: object, offset: int, most: int) -> bytes:
        nonlocal read
        data = real(opened, offset, most)  # type: ignore[arg-type]
        read += len(data)
        return data

    monkeypatch.setattr(log_windows, "_read", counted)
    log = "/logs/window?log=task12n-1.stdout"
    end = get(live, place(run, log)).json()
    assert [line["text"] for line in end["lines"]][-2:] == ["before", "last"]
    assert end["end"] == end["size"] == 1 << 30
    start = get(live, place(run, f"{log}&after=0")).json()
    assert [line["text"] for line in start["lines"]][:2] == ["first", "second"]
    middle = get(live, place(run, f"{log}&after={(1 << 29) + 3}")).json()
    assert middle["lines"][0] == {"at": (1 << 29) + 1, "text": "needle here"}
    assert read < 5 * (96 << 10)
    assert len(end["lines"][0]["text"]) <= log_windows.MOST_BYTES


def test_a_search_continues_where_it_stopped(live: Live, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_windows, "MOST_SECONDS", 0.0)
    lines = [f"line {number}" for number in range(400_000)]
    text = "\n".join([*lines, "A Needle", *lines]).encode()
    write(live.paths(run).capture("task12n-1", "stdout", False), text)
    start, found, calls = 0, [], 0
    while start is not None:
        part = get(live, place(run, f"/logs/search?log=task12n-1.stdout&text=a+nEEdle&start={start}")).json()
        start, calls = part["next"], calls + 1
        found += part["found"]
    assert found == [{"at": text.index(b"A Needle"), "text": "A Needle"}] and calls > 3


def test_every_place_is_found_once(live: Live, run: str) -> None:
    write(live.paths(run).capture("task12n-1", "stderr", False), b"hit hit\nmiss\nhit\n" * 5000)
    start, found = 0, []
    while start is not None:
        part = get(live, place(run, f"/logs/search?log=task12n-1.stderr&text=hit&start={start}")).json()
        assert len(part["found"]) <= log_windows.MOST_FOUND
        start = part["next"]
        found += [line["at"] for line in part["found"]]
    assert found == sorted(set(found)) and len(found) == 10_000


def test_a_search_sees_colored_lines_without_their_colors(live: Live, run: str) -> None:
    line = b"\x1b[31mepoch\x1b[0m %d \x1b[1mdone\x1b[0m\n"
    text = b"".join(line % number for number in range(60_000))
    write(live.paths(run).capture("task12n-1", "stdout", False), text)
    start, found = 0, []
    while start is not None:
        part = get(live, place(run, f"/logs/search?log=task12n-1.stdout&text=Epoch+59999+done&start={start}")).json()
        start = part["next"]
        found += part["found"]
    assert found == [{"at": len(text) - len(line % 59_999), "text": "epoch 59999 done"}]


@pytest.mark.parametrize(("line", "shown"), [
    (b"\x1b[31mred\x1b[0m", "red"), (b" 10%\r 50%\r100%\r", "100%"), (b"\x1b]0;title\x07text", "text"),
    (b"a\x00b\x08c", "a\ufffdb\ufffdc"), (b"\xff", "\ufffd"),
    ("\u202eevil".encode(), "\ufffdevil"), (b"tab\there", "tab\there"),
])
def test_lines_are_shown_without_control_characters(line: bytes, shown: str) -> None:
    assert log_windows.readable(line) == shown


def test_windows_cover_a_log_without_gaps(live: Live, run: str) -> None:
    lines = [f"{number} " + "x" * (number % 300) for number in range(2000)]
    write(live.paths(run).capture("task12n-1", "stdout", False), "\n".join(lines).encode())
    after, forward = 0, []
    while True:
        part = get(live, place(run, f"/logs/window?log=task12n-1.stdout&after={after}")).json()
        forward += [line["text"] for line in part["lines"]]
        if part["end"] == part["size"]:
            break
        after = part["end"]
    before, backward = part["size"], list[str]()
    while before:
        part = get(live, place(run, f"/logs/window?log=task12n-1.stdout&before={before}")).json()
        backward = [line["text"] for line in part["lines"]] + backward
        before = part["start"]
    assert forward == backward == lines


@pytest.mark.parametrize("query", ["log=nothing", "log=../../secret", "log=launcher&after=-1", "log=launcher&before=x"])
def test_an_unknown_log_or_offset_is_refused(live: Live, run: str, query: str) -> None:
    write(live.paths(run).launcher_log, b"x\n")
    assert get(live, place(run, f"/logs/window?{query}")).status == 400


def test_a_log_that_became_a_link_is_not_followed(live: Live, run: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("top secret\n")
    file = live.paths(run).capture("task12n-1", "stdout", False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(tmp_path / "secret")
    assert "top secret" not in get(live, place(run, "/logs?log=task12n-1.stdout")).text


# --- code and results


def test_code_is_colored_and_only_submitted_files_are_shown(live: Live) -> None:
    run = live.submitted(files={"main.py": b"import os  # comment\n", "data.bin": b"\0\1"})
    page = get(live, place(run, "/code"))
    assert '<span class="h-kn">import</span>' in page.text and "style=" not in page.text
    assert "not text" in words(get(live, place(run, "/code?file=data.bin")))
    for path in ("../../job.json", "/etc/passwd", "missing.py"):
        assert get(live, place(run, f"/code?file={path}")).error == (400, "exec.no_file")


def test_results_link_to_downloads_of_the_api(live: Live, run: str) -> None:
    write(live.paths(run).model / "a b.bin", b"12345")
    finished(live, run)
    page = get(live, place(run, "/results?file=model/a%20b.bin")).text
    link = f"/platform/rest/deeplearning/v1/execs/{run}/files/content?path=model/a%20b.bin"
    assert link in page
    answer = get(live, link)
    assert (answer.status, answer.body) == (200, b"12345")


def test_a_failed_run_says_why(live: Live, run: str) -> None:
    live.move(run, PENDING, RUNNING, ERROR, message=f"exit code 1 {EVIL}")
    assert "exit code 1" in words(get(live, place(run)))


def test_a_run_says_how_many_workers_died(live: Live) -> None:
    run = live.submitted(ELASTIC)
    live.run_on(run, "cpu-0")
    live.say(run, {"step": 1, "deaths": 0, "workers": 1})
    assert "0 workers died" in words(get(live, place(run)))
    live.say(run, {"step": 1, "deaths": 2, "workers": 1})
    assert "2 workers died" in words(get(live, place(run)))


@pytest.mark.parametrize(("state", "helps"), [(RUNNING, True), (FINISHED, True), (ERROR, False)])
def test_the_advice_about_curves_is_for_programs_that_could_have_them(live: Live, state: str, helps: bool) -> None:
    run = live.submitted(ELASTIC)
    live.run_on(run, "cpu-0")
    if state != RUNNING:
        live.move(run, state)
    assert ("dlicmd.log" in get(live, place(run)).text) is helps


def test_a_log_with_batches_says_what_it_counts(live: Live) -> None:
    run = live.submitted(ELASTIC)
    log = live.paths(run).capture("task0", "stdout", True)
    write(log, b"epoch 1\n")
    path = place(run, f"/logs?log={log_name(live, run)}")
    assert 'id="counts-batches"' not in get(live, path).text
    write(log, b"Train,\tTimestamp: 1,\tGlobal steps: 4,\tIteration: 4,\n")
    assert "2 batches" in words(get(live, path)) and 'id="counts-batches"' in get(live, path).text


def log_name(live: Live, run: str) -> str:
    """Return the name of the log of the driver."""
    files = live.services.logs.files(Caller("alice", True), run)
    return next(one.name for one in files if "task0" in one.name)


def test_the_form_for_other_data_opens_a_folder(live: Live) -> None:
    run = live.submitted(ELASTIC)
    form = get(live, place(run, "/again?choose=data"))
    assert 'name="data-1-path"' in form.text and 'id="data-1-folder"' in form.text
    assert f'href="{places.DATA_FILES}?volume=&amp;path=#upload"' in form.text, "an empty folder leads to the upload"
    (live.settings.data_fs / "mnist").mkdir()
    form = get(live, place(run, "/again?choose=data"))
    assert "mnist/" in words(form) and "#upload" not in form.text
    assert 'name="data-1-path"' not in get(live, place(run, "/again")).text


def test_the_settings_list_the_parameters(live: Live) -> None:
    run = live.submitted("--exec-start PyTorch --model-main main.py --lr 0.1 --name '<b>' --fast --token=secret-value")
    page = get(live, place(run, "/settings"))
    assert words(page).partition("Name Value ")[2].startswith("--lr 0.1 --name <b> --fast yes --token *** ")
    assert "<b>" not in page.text and "secret-value" not in page.text
    assert "main.py --lr 0.1 --name <b> --fast --token=***" in words(page)


@pytest.mark.parametrize(("told", "shown"), [
    ({"loss": 0.5, "lastMetrics": {"f1": {"value": 0.25, "step": 1, "stepUnit": "step"}}}, ["loss 0.5"]),
    ({"loss": None, "lastMetrics": {name: {"value": number, "step": 1, "stepUnit": "step"}
                                    for number, name in enumerate(("<i>", "f1", "auc", "lr"))}},
     ["<i> 0", "f1 1", "auc 2"]),
    ({}, []),
])
def test_the_head_shows_the_main_metrics(live: Live, run: str, told: dict[str, object], shown: list[str]) -> None:
    live.run_on(run, "cpu-0")
    live.say(run, told)
    page = get(live, place(run, "/parts/head"))
    assert [one for one in ("loss 0.5", "<i> 0", "f1 1", "auc 2", "lr 3", "f1 0.25") if one in words(page)] == shown
    assert "<i>" not in page.text
