"""GET /execs/{id}/curves."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
from live_server import Live

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.curves import answers
from local_backend.curves import file as curve_file
from local_backend.curves.book import Book
from local_backend.curves.file import CurveFile, read
from local_backend.curves.model import RESOURCES, SECOND, MetricValue


@pytest.fixture
def running(live: Live) -> str:
    exec_id = live.submitted("--exec-start PyTorch --model-main main.py")
    live.run_on(exec_id, "cpu-0")
    return exec_id


def detailed(live: Live, exec_id: str) -> dict[str, Any]:
    """Return an exec as a client gets it that accepts values which are no scalars."""
    assert not {"arguments", "lastMetrics"} & live.call("GET", f"/execs/{exec_id}").json().keys()
    (listed,) = live.call("GET", "/execs", headers={"Prefer": "details"}).json()
    found = live.call("GET", f"/execs/{exec_id}", headers={"Prefer": "details"}).json()
    assert found == listed == live.call("GET", f"/execs/{exec_id}/follow").json()["exec"]
    return found


def test_an_exec_without_curves_has_an_empty_list(live: Live, running: str) -> None:
    assert live.call("GET", f"/execs/{running}/curves").json() == {"curves": [], "cursor": "", "whole": True}


def test_curves_by_name_and_since_a_cursor(live: Live, running: str) -> None:
    book = Book()
    for name in ("loss", "acc"):
        book.add("printed", MetricValue(name, 0.5, 3, "epoch", 7.5))
    CurveFile(live.paths(running).curves, book, 1.0)
    found = live.call("GET", f"/execs/{running}/curves?metric=loss&metric=other").json()
    assert found["curves"] == [
        {"name": "loss", "source": "printed", "unit": "", "stepUnit": "epoch", "points": [[3, 0.5, 7.5]]}]
    later = live.call("GET", f"/execs/{running}/curves?since={found['cursor']}").json()
    assert later == {"curves": [], "cursor": found["cursor"], "whole": False}


def test_the_cpu_and_the_memory_in_use_are_curves_of_their_own(live: Live, running: str) -> None:
    path = f"/execs/{running}/resources"
    assert live.call("GET", path).json() == {"curves": [], "cursor": "", "whole": True}
    book = Book()
    for second in range(3, 203, 10):
        for name, value in (("cpu", second / 100), ("memory", 2.0**30)):
            book.add(RESOURCES, MetricValue(name, value, second, SECOND, 1.7e9 + second))
    CurveFile(live.paths(running).resources, book, 1.7e9)
    found = live.call("GET", path).json()
    assert [(*map(one.get, ("name", "source", "unit", "stepUnit")), len(one["points"])) for one in found["curves"]] == [
        ("cpu", "resources", "cores", "second", 20), ("memory", "resources", "bytes", "second", 20)]
    assert live.call("GET", f"{path}?since={found['cursor']}").json()["curves"] == []
    [cpu] = live.call("GET", f"{path}?metric=cpu&width=100&from=100&to=110").json()["curves"]
    assert (cpu["unit"], [point[:2] for point in cpu["points"]]) == ("cores", [[93, 0.93], [103, 1.03], [113, 1.13]])
    [timed, _] = live.call("GET", f"{path}?width=100&axis=time").json()["curves"]
    [elapsed, _] = live.call("GET", f"{path}?width=100&axis=elapsed").json()["curves"]
    assert timed["points"][0][:2] == [1.7e9 + 3, 0.03] and elapsed["points"][0][:2] == [3, 0.03]
    assert live.call("GET", f"{path}?width=0").error == (400, "query.number")
    assert live.call("GET", f"{path}?width=9&since=1").error == (400, "query.value")
    # They are no metrics of the program.
    assert live.call("GET", f"/execs/{running}/curves").json()["curves"] == []


def test_a_large_file_is_read_by_a_process_and_not_again_until_it_changes(
    live: Live, running: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book()
    for step in range(9000):
        book.add("printed", MetricValue("loss", step * 0.123456789, step, "step", 1.7e9 + step))
    path = live.paths(running).curves
    CurveFile(path, book, 1.0)
    assert path.stat().st_size > 256 << 10
    processes: list[object] = []
    run = answers.subprocess.run
    monkeypatch.setattr(answers.subprocess, "run", lambda *a, **k: (processes.append(a), run(*a, **k))[1])
    whole = [live.call("GET", f"/execs/{running}/curves") for _ in range(2)]
    assert whole[0].body == whole[1].body and len(processes) == 1
    with path.open("rb") as file:
        expected = read(file, "", ())
    assert whole[0].json() == {"curves": expected.curves, "cursor": expected.cursor, "whole": True}
    with path.open("a") as file:
        file.write('{"i":0,"p":[[9001,0.5,null]]}\n')
    later = live.call("GET", f"/execs/{running}/curves?since={expected.cursor}").json()
    assert [one["points"] for one in later["curves"]] == [[[9001, 0.5, None]]] and len(processes) == 2


def test_a_file_with_more_points_than_a_program_may_record_has_a_bounded_answer(
    live: Live, running: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve_file, "_MOST_SHOWN", 1000)
    path = live.paths(running).curves
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ['{"generation":1,"began":0.0}']
    for index in range(20):
        lines.append(json.dumps({"i": index, "name": f"m{index}", "source": "printed", "unit": "step"}))
        lines.append(json.dumps({"i": index, "p": [[step, 1.0, None] for step in range(200)]}))
    path.write_text("\n".join(lines) + "\n")
    found = live.call("GET", f"/execs/{running}/curves").json()
    assert len(found["curves"]) == 20 and 0 < sum(len(one["points"]) for one in found["curves"]) <= 1000


def test_a_file_that_the_program_replaced_is_not_read(live: Live, running: str) -> None:
    path = live.paths(running).curves
    path.parent.mkdir(parents=True, exist_ok=True)
    secret = path.with_name("secret")
    secret.write_text(json.dumps({"generation": 1}) + "\n")
    os.symlink(secret, path)
    assert live.call("GET", f"/execs/{running}/curves").json()["cursor"] == ""


def test_the_last_values_are_part_of_the_exec(live: Live, running: str) -> None:
    live.say(running, {"lastMetrics": {
        "loss": {"value": 0.5, "step": 3, "stepUnit": "epoch", "steps": 9, "left": 2},
        "acc": {"value": 1e999, "step": 1}, "f1": {"value": 1, "step": 1, "stepUnit": 7, "steps": [9], "left": -1}}})
    assert detailed(live, running)["lastMetrics"] == {
        "loss": {"value": 0.5, "step": 3, "stepUnit": "epoch", "steps": 9, "left": 2}, "f1": {"value": 1, "step": 1}}


def test_all_values_are_part_of_the_exec_with_details(live: Live) -> None:
    exec_id = live.submitted("--exec-start PyTorch --model-main main.py -- --lr 1e-3 --batch-size=64 --amp --opt adam "
                             "--sizes=[1,2] --api-key xyz model.depth=3 +model.width=4 rest")
    live.run_on(exec_id, "cpu-0")
    metrics = {f"m{number}": number / 4 for number in range(1, 13)}
    live.say(exec_id, {"loss": 0.5, "accuracy": math.nan, "lastMetrics": {
        name: {"value": value, "step": 1} for name, value in metrics.items()}})
    found = detailed(live, exec_id)
    assert found["metrics"] == {"loss": 0.5, **metrics} and len(found["lastMetrics"]) == 8
    assert found["parameters"] == {"lr": 0.001, "batch-size": 64, "amp": True, "opt": "adam", "sizes": "[1,2]",
                                   "api-key": "***", "model.depth": 3, "model.width": 4}
    assert not {"metrics", "parameters"} & live.call("GET", f"/execs/{exec_id}").json().keys()


def test_a_list_is_sorted_by_any_value(live: Live) -> None:
    rows = (("0.1", {"f1": 0.5, "lr": 0.3}), ("0.02", {"F1": 0.7}), ("0.3", None), ("0.04", {"f1": 0.9}))
    for rate, metrics in rows:
        exec_id = live.submitted(f"--exec-start PyTorch --model-main main.py -- --lr {rate}")
        if metrics:
            last = {name: {"value": value, "step": 1} for name, value in metrics.items()}
            live.move(exec_id, PENDING, RUNNING)
            live.move(exec_id, FINISHED, progress=json.dumps({"lastMetrics": last}))

    def listed(query: str) -> list[int]:
        answer = live.call("GET", f"/execs?{query}")
        assert answer.status == 200, answer.text
        return [int(one["id"].removeprefix("local-")) for one in answer.json()]

    assert listed("sort_by=f1:desc") == listed("sort_by=metric.f1:desc") == [4, 1, 2, 3]
    assert listed("sort_by=F1") == [2, 1, 3, 4], "the exact name comes first"
    assert listed("sort_by=param.lr") == [2, 4, 1, 3] and listed("sort_by=lr") == [1, 2, 3, 4], "a metric comes first"
    assert listed("sort_by=lr&find=-id:1") == [2, 4, 3], "among the listed execs"
    assert listed("sort_by=metric.none:desc&limit=2&offset=1") == [2, 3]
    assert listed("find=f1%3E0.6%20lr%3C0.05") == [2, 4] and listed("find=param.lr%3E%3D0.1") == [1, 3]
    assert listed("find=none%3C1") == []
    assert live.call("GET", "/execs?sort_by=none").error == (400, "query.sort")


def test_the_words_of_the_program_are_shown_without_secrets(live: Live) -> None:
    exec_id = live.submitted("--exec-start PyTorch --model-main main.py -- --lr 0.1 --api-key xyz --tokenizer gpt2 "
                             "--max-tokens 5 --db=postgresql://me:pw@host/db")
    assert detailed(live, exec_id)["arguments"] == [
        "--lr", "0.1", "--api-key", "***", "--tokenizer", "gpt2", "--max-tokens", "5", "--db=postgresql://me:***@host/db"]
