"""Several runs side by side: values, metrics, curves and code."""

from __future__ import annotations

import json
import re

import pytest
from live_server import Live, tar
from page_desk import get, words
from planning import Planning

from local_backend.console import highlighting, places
from local_backend.curves.book import Book
from local_backend.curves.file import CurveFile
from local_backend.curves.model import MetricValue
from local_backend.limited_work import WorkLimits
from local_backend.services import comparisons, submitted_code

COMPARE = "/console/runs/compare"


def submit(live: Live, name: str, options: str, program: str, code: bytes) -> str:
    args = f"--exec-start PyTorch --model-main main.py --appName {name} {options} -- {program}"
    return live.submitted(args, files={"main.py": code})


@pytest.fixture
def two(live: Live) -> list[str]:
    """Two runs with different options, parameters, environment and code."""
    return [
        submit(live, "one", "--msd-env MODE=fast --msd-env PASSWORD=hush", "--lr 0.1 --epochs 3",
               b"print(1)\nprint(2)\n"),
        submit(live, "two", "--msd-priority 7 --msd-env MODE=slow", "--lr=0.2 --epochs 3", b"print(1)\nprint('<b>')\n"),
    ]


def record(live: Live, exec_id: str, unit: str = "step", **curves: list[float]) -> None:
    """Store the curves of a run, from step 0."""
    book = Book()
    for name, values in curves.items():
        for step, value in enumerate(values):
            book.add("printed", MetricValue(name, value, step, unit, 1.7e9))
    path = live.paths(exec_id).curves
    path.parent.mkdir(parents=True, exist_ok=True)
    CurveFile(path, book, 1.0)


def query(ids: list[str]) -> str:
    return "&".join(f"id={one}" for one in ids)


def cells(text: str, name: str) -> list[str]:
    """Return the texts of the cells of a row."""
    row = re.search(rf'<th scope="row">{re.escape(name)}</th>(.*?)</tr>', text, re.DOTALL)
    assert row, name
    found = re.findall(r"<td>(.*?)</td>", row[1], re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in found]


def test_different_values_are_shown_side_by_side(live: Live, two: list[str]) -> None:
    text = get(live, f"{COMPARE}?{query(two)}").text
    assert cells(text, "program --lr") == ["0.1", "0.2"] and cells(text, "--msd-priority") == ["–", "7"]
    assert cells(text, "MODE") == ["fast", "slow"] and cells(text, "PASSWORD") == ["***", "–"] and "hush" not in text
    assert "program --epochs" not in text
    everything = get(live, f"{COMPARE}?{query(two)}&equal=1").text
    assert cells(everything, "program --epochs") == ["3", "3"] and cells(everything, "framework") == ["PyTorch"] * 2


def test_files_that_differ_are_listed_with_their_difference(live: Live, two: list[str]) -> None:
    same = submit(live, "three", "", "", b"print(1)\nprint(2)\n")
    text = get(live, f"{COMPARE}/parts/code?{query([*two, same])}", part=True).text
    assert cells(text, "main.py") == ["version A", "version B", "version A"]
    path = re.search(r'hx-get="([^"]*)"', text)
    assert path
    diff = get(live, path[1].replace("&amp;", "&"), part=True)
    assert "-print(2) +print('<b>')" in words(diff) and "<b>" not in diff.text
    assert "do not differ" in words(get(live, f"{COMPARE}/parts/code?{query([two[0], same])}", part=True))


def test_all_runs_together_read_a_bounded_part_of_their_files(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads the same part, so files that are read can be compared."""
    monkeypatch.setattr(comparisons, "MOST_READ", 3000)
    ids = [submit(live, f"r{number}", "", "", b"#" * 900 + b"%d\n" % number) for number in range(4)]
    text = words(get(live, f"{COMPARE}/parts/code?{query(ids[:3])}", part=True))
    assert "version C" in text and "Too large" not in text
    text = words(get(live, f"{COMPARE}/parts/code?{query(ids)}", part=True))
    assert "Too large to read" not in text or "main.py" in text
    assert "do not differ" in text, "only their sizes are known, which are the same"


def test_a_diff_reads_no_other_file(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [live.submitted("--exec-start PyTorch --model-main main.py", files={
        "data.bin": bytes(5000), "main.py": b"print(%d)\n" % number}) for number in range(2)]
    monkeypatch.setattr(submitted_code.CodeReader.__init__, "__defaults__", (2 << 20, 1000))
    diff = get(live, f"{COMPARE}/parts/diff?first={ids[0]}&second={ids[1]}&path=main.py", part=True)
    assert "-print(0) +print(1)" in words(diff)


def test_a_diff_that_needs_minutes_is_given_up(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "_LIMITS", WorkLimits(seconds=1, memory=256 << 20))
    texts = ["".join(f"{(place * step) % 101}\n" for place in range(4900)).encode() for step in (7, 11)]
    ids = [submit(live, "slow", "", "", text) for text in texts]
    diff = get(live, f"{COMPARE}/parts/diff?first={ids[0]}&second={ids[1]}&path=main.py", part=True)
    assert "too large to compare" in words(diff)


@pytest.mark.parametrize(("name", "text"), [
    ("a.sh", "<<" + "a" * 30_000 + "\n"), ("a.py", " \n" * 60_000),
])
def test_code_whose_colors_need_minutes_is_shown_without(
    live: Live, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr(highlighting, "_LIMITS", WorkLimits(seconds=1, memory=256 << 20))
    run = live.submitted("--exec-start PyTorch --model-main main.py", files={
        "main.py": b"def f(): return '<b>'\n", name: text.encode()})
    plain = get(live, f"/console/runs/{run}/code?file={name}").text
    assert 'class="h-' not in plain and text[:50].replace("<", "&lt;") in plain
    colored = get(live, f"/console/runs/{run}/code").text
    assert 'class="h-' in colored and "<b>" not in colored


def test_no_character_changes_the_order_of_shown_code(live: Live) -> None:
    code = "if admin:\u202e # \u2066check\u2069\n    pass\n".encode()
    runs = [submit(live, "one", "", "", code), submit(live, "two", "", "", b"")]
    Planning(live).defined(archive=tar({"digits/train.py": code}))
    for path in (f"/console/runs/{runs[0]}/code", f"{places.DEFINITIONS}/alice/digits",
                 f"{COMPARE}/parts/diff?first={runs[0]}&second={runs[1]}&path=main.py"):
        text = get(live, path).text
        assert "check" in text and "\ufffd" in text, path
        assert not set("\u202e\u2066\u2069") & set(text.partition("<pre")[2].partition("</pre>")[0]), path


def test_other_users_and_impossible_selections_are_refused(team: Live) -> None:
    bob = team.add_user("bob")
    mine = [team.submitted(token=bob) for _ in range(2)]
    other = team.submitted()
    assert get(team, f"{COMPARE}?{query(mine)}", bob).status == 200
    for part in ("", "/parts/code"):
        refused = get(team, f"{COMPARE}{part}?{query([*mine, other])}", bob)
        assert refused.status == 400 and other in words(refused)
    assert get(team, f"{COMPARE}/parts/diff?first={mine[0]}&second={other}&path=main.py", bob).status == 400
    curves = f"{COMPARE}/curves?{query([mine[0], other])}&metric=loss&width=100"
    for one in (curves, curves.replace("/curves", "/parallel")):
        assert get(team, one, bob).error == (400, "exec.not_found")
    for few in ([], mine[:1], [mine[0], mine[0]], [f"local-{number}" for number in range(60)]):
        assert "select 2 to 50" in words(get(team, f"{COMPARE}?{query(few)}", bob))


def test_results_come_first_and_only_metrics_with_a_direction_have_a_best_value(live: Live, two: list[str]) -> None:
    record(live, two[0], **{"workers": [2.0], "lr": [0.1], "test/accuracy": [0.5, 0.8], "loss": [1.0]})
    record(live, two[1], **{"workers": [4.0], "lr": [0.2], "test/accuracy": [0.9, 0.7], "loss": [1.0]})
    text = get(live, f"{COMPARE}?{query(two)}").text
    assert re.findall(r'<th scope="row">([^<]*)</th>', text)[:6] == [
        "last loss", "best loss", "last test/accuracy", "best test/accuracy", "last lr", "last workers"]
    assert cells(text, "best test/accuracy") == ["0.8 step 1", "0.9 ★ step 0"]
    assert cells(text, "best loss") == ["1 step 0", "1 step 0"], "no run is better"


def test_runs_that_share_the_best_value_are_all_marked(live: Live, two: list[str]) -> None:
    third = live.submitted()
    for run, value in ((two[0], 1.0), (two[1], 0.5), (third, 1.0)):
        record(live, run, **{"test/accuracy": [value]})
    text = get(live, f"{COMPARE}?{query([*two, third])}").text
    assert cells(text, "best test/accuracy") == ["1 ★ step 0", "0.5 step 0", "1 ★ step 0"]


def test_curves_and_their_last_and_best_values(live: Live, two: list[str]) -> None:
    record(live, two[0], loss=[3.0, 1.0, 2.0])
    record(live, two[1], loss=[float(9000 - step) for step in range(9000)], accuracy=[0.5])
    text = get(live, f"{COMPARE}?{query(two)}").text
    assert cells(text, "last loss") == ["2 step 2", "1 step 8 999"]
    assert cells(text, "best loss") == ["1 step 1", "1 step 8 999"]
    assert cells(text, "best accuracy") == ["–", "0.5 step 0"]
    chart = re.search(r'data-chart="([^"]*metric=loss)"', text)
    assert chart
    drawn = json.loads(get(live, chart[1].replace("&amp;", "&") + "&width=100").body)
    assert [one["name"] for one in drawn["series"]] == [f"one ({two[0]})", f"two ({two[1]})"]
    assert [one["color"] for one in drawn["series"]] == [1, 2] and drawn["series"][0]["y"] == [3.0, 1.0, 2.0]
    elapsed = json.loads(get(live, chart[1].replace("&amp;", "&") + "&width=100&axis=elapsed").body)
    begin = live.row(two[0]).create_time
    assert elapsed["series"][0]["x"] == pytest.approx([1.7e9 - begin] * 3, abs=0.01)
    assert elapsed["x"] == {"label": "seconds since the start", "kind": "number"}
    clock = json.loads(get(live, chart[1].replace("&amp;", "&") + "&width=100&axis=time").body)
    assert clock["series"][0]["x"] == pytest.approx([1.7e9] * 3, abs=0.01) and clock["x"]["kind"] == "time"
    assert len(drawn["series"][1]["x"]) <= 400 and drawn["series"][1]["x"][-1] == 8999


def parallel_of(text: str) -> str:
    """Return the path of the data of the parallel coordinates; "" if a page has none."""
    found = re.search(r'data-parallel="([^"]*)"', text)
    return found[1].replace("&amp;", "&") if found else ""


def test_parameters_are_drawn_with_the_metrics_of_three_runs(live: Live, two: list[str]) -> None:
    third = submit(live, "three", "--msd-env MODE=fast", "--lr 20 --epochs 3", b"")
    record(live, two[0], **{"test/accuracy": [0.5, 0.8], "loss": [1.0], "norm": [1.0]})
    record(live, two[1], **{"test/accuracy": [0.9, 0.7], "loss": [0.5], "norm": [1.0]})
    record(live, third, loss=[2.0])
    assert not parallel_of(get(live, f"{COMPARE}?{query(two)}").text)
    ids = query([*two, third])
    drawn = json.loads(get(live, parallel_of(get(live, f"{COMPARE}?{ids}&by=loss").text)).body)
    assert drawn == {
        "metric": "best loss", "maximize": False,
        "axes": [{"name": "MODE", "log": False}, {"name": "PASSWORD", "log": False}, {"name": "--lr", "log": True},
                 {"name": "best test/accuracy", "log": False}],
        "lines": [
            {"id": f"one ({two[0]})", "run": two[0], "value": 1.0, "at": ["fast", "***", 0.1, 0.8]},
            {"id": f"two ({two[1]})", "run": two[1], "value": 0.5, "at": ["slow", None, 0.2, 0.9]},
            {"id": f"three ({third})", "run": third, "value": 2.0, "at": ["fast", None, 20.0, None]},
        ],
    }
    page = get(live, f"{COMPARE}?{ids}").text
    assert "by=loss#parallel" in page and "by=norm" not in page
    assert json.loads(get(live, parallel_of(page)).body)["metric"] == "best loss", "all runs have it"
    page = get(live, f"{COMPARE}?{ids}&by=test/accuracy").text
    chosen = json.loads(get(live, parallel_of(page)).body)
    assert chosen["metric"] == "best test/accuracy" and chosen["maximize"]
    assert [one["run"] for one in chosen["lines"]] == two, "the third run has no accuracy"
    assert "Runs without test/accuracy have no line: 1 of 3." in page
    assert [one["name"] for one in chosen["axes"]] == ["MODE", "PASSWORD", "--lr", "best loss"]
    assert get(live, f"{COMPARE}/parallel?{ids}&metric=norm").error == (400, "query.value")


def test_values_that_are_not_finite_are_counted(live: Live, two: list[str]) -> None:
    record(live, two[0], loss=[3.0, float("nan"), float("inf")])
    record(live, two[1], loss=[2.0, float("nan")])
    drawn = json.loads(get(live, f"{COMPARE}/curves?{query(two)}&metric=loss&width=100").body)
    assert drawn["left"] == 3 and [one["y"] for one in drawn["series"]] == [[3.0], [2.0]]
    assert json.loads(get(live, f"/console/runs/{two[0]}/curves?width=100&metric=loss").body)["left"] == 2
    page = get(live, f"{COMPARE}?{query(two)}").text
    assert "2 not finite" in page and "1 not finite" in page


def test_a_run_that_counts_epochs_is_compared_with_one_that_counts_steps(live: Live, two: list[str]) -> None:
    record(live, two[0], loss=[3.0, 1.0])
    record(live, two[1], unit="epoch", loss=[2.0, 0.5, 0.7])
    text = get(live, f"{COMPARE}?{query(two)}").text
    assert cells(text, "last loss") == ["1 step 1", "0.7 epoch 2"]
    assert cells(text, "best loss") == ["1 step 1", "0.5 ★ epoch 1"]
    drawn = json.loads(get(live, f"{COMPARE}/curves?{query(two)}&metric=loss&width=100").body)
    assert drawn["x"]["label"] == "epoch or step"


def test_no_deaths_are_said_and_not_drawn(live: Live, two: list[str]) -> None:
    for name in two:
        record(live, name, workers=[2.0, 2.0], deaths=[0.0, 0.0])
    text = get(live, f"{COMPARE}?{query(two)}").text
    assert "metric=workers" in text and "metric=deaths" not in text and 'id="no-deaths"' in text
    assert cells(text, "last deaths") == ["0 step 1"] * 2
    record(live, two[1], workers=[2.0, 1.0], deaths=[0.0, 1.0])
    text = get(live, f"{COMPARE}?{query(two)}").text
    assert "metric=deaths" in text and 'id="no-deaths"' not in text


def test_options_have_the_words_of_pages(live: Live, two: list[str]) -> None:
    text = get(live, f"{COMPARE}?{query(two)}&equal=1").text
    assert cells(text, "workers") == ["1", "1"] and "numWorker" not in text
