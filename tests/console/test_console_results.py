"""The files of a run on its page: pictures, tables, texts, event files, and what hostile programs write."""

from __future__ import annotations

import html
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from live_server import TOKEN, Answer, Live
from page_desk import get, words
from visitor import Page

from dlicmd.contract.states import FINISHED
from local_backend import limited_work
from local_backend.api.guard import SESSION
from local_backend.console import places
from local_backend.curves.summaries import MOST_STEPS
from local_backend.limited_work import LimitExceeded
from local_backend.services import run_files
from local_backend.services.browsing import MOST_BYTES

FILES = Path(__file__).parent.parent / "data" / "curves"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture
def run(live: Live) -> str:
    """A running exec."""
    run = live.submitted("--exec-start PyTorch --model-main main.py")
    live.run_on(run, "cpu-0")
    return run


def write(live: Live, run: str, name: str, content: bytes) -> None:
    path = live.paths(run).root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def shown(run: str, name: str = "", what: str = "") -> str:
    return f"{places.RUNS}/{run}/results{what}" + (f"?file={quote(name, safe='')}" if name else "")


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"epoch": range(300), "name": [f"n{number}" for number in range(300)]}), buffer)
    return buffer.getvalue()


def array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(6, dtype="<f4").reshape(2, 3) / 2)
    return buffer.getvalue()


def arrays() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, first=np.arange(3), second=np.zeros((2, 5)))
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("history.csv", b"epoch,loss\n1,<b>\n", "epoch loss 1 <b>"),
    ("rows.jsonl", b'{"a": 1}\n', '{"a": 1}'),
    ("table.parquet", parquet(), "Rows 300"), ("table.parquet", parquet(), "99 n99"),
    ("x.npy", array(), "0.0 0.5 1.0"), ("x.npz", arrays(), "second 2 × 5 float64"),
    ("model/config.json", b'{"layers": [1, 2]}', '"layers"'),
    ("a b/<i>.txt", "line ü <b>".encode(), "line ü <b>"),
    ("page.html", b"<script>alert(1)</script>", "alert"),
    ("broken.csv.gz", b"\x1f\x8b" + bytes(20), "cannot be read in the format"),
    ("weights.pt", b"PK\0\1", "no preview"), ("empty.txt", b"", "The file is empty"),
    ("empty.csv", b"", "The file is empty"), ("empty.png", b"", "The file is empty"),
    ("damaged.png", b"\0\1", "or it is damaged"), ("old.txt", "für\n".encode("latin-1") * 9, "read as Latin-1"),
    ("semicolons.csv", b"a;b\n1,5;2,5\n", "a b 1,5 2,5"), ("bytes.bin", b"\xff\1", "no preview"),
    ("half.jsonl", b'{"a": 1}\n{"a":', '{"a": 1} The last line is not complete'),
    ("wrong.jsonl", b'{"a": 1}\nx\n', '{"a": 1} The next line is not JSON'),
])
def test_a_file_is_shown_by_its_kind(live: Live, run: str, name: str, content: bytes, expected: str) -> None:
    write(live, run, name, content)
    page = get(live, shown(run, name))
    assert page.status == 200 and expected in words(page) and "<b>" not in page.text
    assert "<script>alert" not in page.text and name.rpartition("/")[2].replace("<i>", "&lt;i&gt;") in page.text
    assert Page(page.text).all("table"), "the list of files is beside it"
    part = get(live, shown(run, name), part=True)
    assert expected in words(part) and "<html" not in part.text


def test_json_has_the_colors_of_code(live: Live, run: str) -> None:
    write(live, run, "config.json", b'{"a": "b"}')
    assert 'class="h-s2"' in get(live, shown(run, "config.json")).text


def test_pictures_are_shown_as_a_gallery(live: Live, run: str) -> None:
    write(live, run, "plots/a b.png", PNG)
    write(live, run, "plots/c.svg", SVG)
    write(live, run, "notes.txt", b"x")
    links = [one["src"] for one in Page(get(live, shown(run)).text).all("img") if "/results/picture" in one["src"]]
    assert len(links) == 2
    png, svg = (get(live, link) for link in links)
    assert (png.status, png.body, png.headers["content-type"]) == (200, PNG, "image/png")
    assert png.headers["content-disposition"] == "inline"
    # A browser runs no script of a picture, and opens no SVG as a document.
    assert (svg.status, svg.headers["content-type"], svg.headers["content-disposition"]) == (
        200, "image/svg+xml", "attachment")
    for answer in (png, svg):
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(("name", "content"), [
    ("fake.png", SVG), ("fake.svg", b"<html><script>alert(1)</script></html>"), ("fake.webp", b"RIFF    WAVE"),
    ("page.html", b"<svg>"),
])
def test_only_pictures_get_the_type_of_one(live: Live, run: str, name: str, content: bytes) -> None:
    write(live, run, name, content)
    assert get(live, shown(run, name, "/picture")).error == (400, "data.invalid")


def test_a_picture_that_is_too_large_is_said(live: Live, run: str) -> None:
    write(live, run, "large.png", PNG)
    os.truncate(live.paths(run).root / "large.png", MOST_BYTES + 1)
    page = get(live, shown(run, "large.png"))
    assert "too large for this page" in words(page) and not [
        one for one in Page(page.text).all("img") if "large.png" in one["src"]]


def test_json_in_one_line_is_indented(live: Live, run: str) -> None:
    text = json.dumps({"numbers": list(range(50)), "empty": [], "x": 1.50}).replace("1.5", "1.50")
    write(live, run, "config.json", text.encode())
    write(live, run, "short.json", b'{"a": 1}')
    page = get(live, shown(run, "config.json"))
    [shown_text] = re.findall(r"<pre[^>]*>(.*?)</pre>", page.text, re.S)
    lines = html.unescape(re.sub("<[^>]*>", "", shown_text)).splitlines()
    assert lines[:3] == ["{", '  "numbers": [', "    0,"] and lines[-3:] == ['  "empty": [],', '  "x": 1.50', "}"]
    assert "a line for each value" in words(page)
    assert "a line for each value" not in words(get(live, shown(run, "short.json")))


# --- folders


def listed(page: Answer) -> list[str]:
    """Return the names in the list of files."""
    [table] = re.findall(r'<div class="scroll files".*?</table>', page.text, re.S)
    return [html.unescape(re.sub("<[^>]*>", "", name)) for name in re.findall(r"<a [^>]*>.*?</a>", table, re.S)]


def test_folders_are_shown_one_by_one(live: Live, run: str) -> None:
    for name in ("a.txt", "plots/b.png", "plots/deep/c.txt", "plots/deep/d.txt"):
        write(live, run, name, PNG)
    top = get(live, shown(run))
    assert listed(top) == ["plots/", "a.txt"] and "3 files" in words(top)
    below = get(live, shown(run) + "?folder=plots")
    assert listed(below) == ["deep/", "b.png"]
    links = {unquote(one["href"]) for one in Page(below.text).all("a")}
    assert {shown(run), shown(run) + "?folder=plots/deep"} <= links
    assert listed(get(live, shown(run, "plots/deep/d.txt"))) == ["c.txt", "d.txt"], "the folder of the file"
    for none in ("?folder=none", "?folder=../x", "?folder=a.txt"):
        assert "This folder has no files" in words(get(live, shown(run) + none)), none


def test_many_files_are_paged(live: Live, run: str) -> None:
    for number in range(450):
        write(live, run, f"parts/{number:03}.txt", b"x")
    first, last = get(live, shown(run) + "?folder=parts"), get(live, shown(run) + "?folder=parts&page=99")
    assert listed(first) == [f"{number:03}.txt" for number in range(200)]
    assert listed(last) == [f"{number:03}.txt" for number in range(400, 450)]
    with_file = get(live, shown(run, "parts/250.txt"))
    assert listed(with_file)[0] == "200.txt", "the page with the file"
    assert get(live, shown(run) + "?page=x").error == (400, "query.number")


def test_the_list_of_a_running_run_is_loaded_again(live: Live, run: str) -> None:
    write(live, run, "plots/b.png", PNG)
    [part] = [one["hx-get"] for one in Page(get(live, shown(run) + "?folder=plots").text).all("div")
              if "/results/list" in one.get("hx-get", "")]
    write(live, run, "plots/new.png", PNG)
    headers = {"Cookie": f"{SESSION}={TOKEN}", "HX-Current-URL": f"http://x{shown(run, 'plots/new.png')}"}
    answer = live.call("GET", part, b"", headers, token=None, base="")
    assert listed(answer) == ["b.png", "new.png"] and "<html" not in answer.text
    assert [one["href"].rpartition("=")[2] for one in Page(answer.text).all("a") if "aria-current" in one and
            "file=" in one["href"]] == ["plots/new.png"]
    live.move(run, FINISHED)
    assert "/results/list" not in get(live, shown(run)).text


# --- rows of tables


def rows_pages(live: Live, run: str, name: str) -> Iterator[str]:
    """Yield the words of the pages of a table, following the links to the next rows."""
    page = get(live, shown(run, name))
    while True:
        yield words(page)
        following = [one["href"] for one in Page(page.text).all("a") if one.get("rel") == "next"]
        if not following:
            return
        page = get(live, html.unescape(following[0]))


@pytest.mark.parametrize(("name", "content"), [
    ("t.csv", b"epoch,name\n" + b"".join(b"%d,n%d\n" % (number, number) for number in range(250))),
    ("t.jsonl", b"".join(b'{"name": "n%d"}\n' % number for number in range(250))),
])
def test_all_rows_of_a_table_can_be_seen(live: Live, run: str, name: str, content: bytes) -> None:
    write(live, run, name, content)
    first, second, third = rows_pages(live, run, name)
    assert "Rows 1 to 100" in first and "n99" in first and "n100" not in first
    assert "Rows 101 to 200" in second and "n100" in second and "n99 " not in second and "n199" in second
    assert "Rows 201 to 250" in third and "n249" in third
    if name == "t.csv":
        assert "epoch" in second and "epoch" in third, "the names of the columns"


def test_places_that_are_none_begin_at_the_top(live: Live, run: str) -> None:
    write(live, run, "t.csv", b"a,b\n1,2\n")
    for query in ("at=-1&row=-5", "at=x&row=y", f"at={10**30}&row={10**30}"):
        assert "a b 1 2" in words(get(live, shown(run, "t.csv") + "&" + query)), query
    assert "There are no further rows" in words(get(live, shown(run, "t.csv") + "&at=500&row=100"))


def test_large_pictures_have_no_thumbnail(live: Live, run: str) -> None:
    write(live, run, "large.png", PNG + bytes(4 << 20))
    write(live, run, "small.png", PNG)
    page = get(live, shown(run)).text
    assert "picture?file=small.png" in page and "picture?file=large.png" not in page
    assert len(get(live, shown(run, "large.png", "/picture")).body) > 4 << 20


def test_the_beginning_and_the_end_of_a_long_text_are_shown(live: Live, run: str) -> None:
    write(live, run, "train.log", b"".join(b"line %06d\n" % number for number in range(100_000)))
    begin, end = get(live, shown(run, "train.log")), get(live, shown(run, "train.log") + "&view=end")
    assert "line 000000" in words(begin) and "line 099999" not in words(begin)
    assert "line 099999" in words(end) and "line 000000" not in words(end)
    assert len(begin.body) < 200_000


@pytest.mark.parametrize("what", ["", "/picture", "/events"])
def test_no_path_leads_out_of_the_files_of_the_program(live: Live, run: str, tmp_path: Path, what: str) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(PNG)
    write(live, run, "mine.txt", b"1")
    root = live.paths(run).root
    (root / "link.png").symlink_to(secret)
    (root / "folder").symlink_to(tmp_path)
    os.link(secret, root / "hard.png")
    for name in ("link.png", "folder/secret.png", "hard.png", "../x", "/etc/passwd", "a/../mine.txt", "none", "."):
        assert get(live, shown(run, name, what)).error == (400, "exec.no_file"), name


def test_files_of_another_user_are_not_shown(team: Live) -> None:
    bob = team.add_user("bob")
    run = team.submitted("--exec-start PyTorch --model-main main.py")
    write(team, run, "a.png", PNG)
    for what in ("", "/picture", "/events", "/histogram"):
        more = "&tag=x" if what == "/histogram" else ""
        assert get(team, shown(run, "a.png", what) + more, bob).error == (400, "exec.not_found")


def test_a_table_that_needs_too_much_has_no_rows(live: Live, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LimitExceeded

    write(live, run, "a.csv", b"1,2\n")
    write(live, run, "events.out.tfevents.1.host", b"x")
    monkeypatch.setattr(limited_work, "call", refuse)
    assert "too much time or memory" in words(get(live, shown(run, "a.csv")))
    assert "takes too long to read" in words(get(live, shown(run, "events.out.tfevents.1.host")))


# --- event files of TensorBoard


@pytest.mark.parametrize(("source", "expected"), [
    ("pictures.tfevents", {"samples, step 0": 75, "samples, step 10": 76, "samples, step 20": 77}),
    ("picture_tensors.tfevents", {"grid 1, step 0": 77, "grid 1, step 1": 77, "grid 2, step 0": 77,
                                  "grid 2, step 1": 78}),
])
def test_pictures_of_tensorboard_are_shown_by_tag_and_step(
    live: Live, run: str, source: str, expected: dict[str, int]
) -> None:
    name = "runs/a/events.out.tfevents.1.host.1"
    write(live, run, name, (FILES / source).read_bytes())
    assert f"events?file={quote(name)}" in get(live, shown(run)).text
    for what in ("", "/events"):
        pictures = [one for one in Page(get(live, shown(run, name, what)).text).all("img") if "at=" in one["src"]]
        answers = {one["alt"]: get(live, one["src"]) for one in pictures}
        assert {alt: len(answer.body) for alt, answer in answers.items()} == expected
        assert {answer.headers["content-type"] for answer in answers.values()} == {"image/png"}


def test_histograms_of_tensorboard_are_charts_of_quantiles(live: Live, run: str) -> None:
    name = "events.out.tfevents.1"
    write(live, run, name, (FILES / "pictures.tfevents").read_bytes())
    [chart] = [one["data-chart"] for one in Page(get(live, shown(run, name)).text).all("div")
               if "/histogram" in one.get("data-chart", "")]
    found = json.loads(get(live, chart).body)
    assert [(one["name"], one["x"], one["y"]) for one in found["series"]] == [
        ("minimum", [7], [0.0]), ("25 %", [7], [pytest.approx(25, abs=1)]), ("median", [7], [pytest.approx(50, abs=1)]),
        ("75 %", [7], [pytest.approx(75, abs=1)]), ("maximum", [7], [100.0])]


def test_a_part_of_a_file_that_is_no_picture_is_refused(live: Live, run: str) -> None:
    write(live, run, "events.out.tfevents.1", (FILES / "pictures.tfevents").read_bytes())
    for part in ("at=0&size=50", "at=-5&size=-1", f"at={2**63 - 1}&size=9", "at=131&size=20"):
        answer = get(live, shown(run, "events.out.tfevents.1", "/picture") + "&" + part)
        assert answer.error == (400, "data.invalid"), part
    assert run_files.ROWS >= MOST_STEPS
