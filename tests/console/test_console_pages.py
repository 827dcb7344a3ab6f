"""What all pages have in common: headers, no script or style of their own, few bytes, and live parts."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
from live_server import Answer, Live
from visitor import Page, Visitor, entered, page_routes

from dlicmd.contract.states import PENDING
from local_backend.console import assets, places
from local_backend.console import live as live_page

CONSOLE = Path(assets.__file__).parent
TEMPLATES = sorted((CONSOLE / "templates").glob("*.html"))
VENDORED = json.loads((CONSOLE / "static" / "vendored.json").read_text())
THEIRS = {one["file"] for one in VENDORED}
OURS = [path for path in sorted((CONSOLE / "static").glob("*.js")) if path.name not in THEIRS]
#: Attributes that run a script.
RUNS = re.compile(r"on[a-z]+|hx-on.*|hx-vals.*")


def check(answer: Answer, about: str) -> None:
    """Fail if an answer lacks a header that protects pages, or permits more than files of this server."""
    headers = answer.headers
    rules = dict(rule.strip().partition(" ")[::2] for rule in headers["content-security-policy"].split(";"))
    assert rules.pop("default-src") == "'self'" and rules.pop("img-src") == "'self' data:", about
    assert set(rules.items()) == {("object-src", "'none'"), ("base-uri", "'none'"), ("form-action", "'self'"),
                                  ("frame-ancestors", "'none'")}, about
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY", about
    assert headers["referrer-policy"] == "same-origin" and headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin", about
    assert "content-encoding" not in headers, "the length of a compressed page tells about its secrets"


def test_every_page_has_the_headers_and_no_script_of_its_own(live: Live, visitor: Visitor) -> None:
    run, seen = live.submitted(), 0
    paths = [path for method, path in page_routes(live, run) if method == "GET" and path != places.LIVE]
    for path in [*paths, f"{places.HOME}/none", f"{places.RUNS}/local-0"]:
        answer = visitor.get(path, Accept_Encoding="gzip")
        assert answer.status < 500, path
        check(answer, path)
        if not path.startswith(places.STATIC):
            assert answer.headers["cache-control"] == "no-store", path
        if answer.headers.get("content-type", "").startswith("text/html"):
            seen += 1
            for tag, attributes in Page(answer.text).elements:
                assert tag not in ("style", "iframe", "object", "embed", "base"), (path, tag)
                assert tag != "script" or attributes.get("src", "").startswith(places.STATIC), path
                assert "style" not in attributes and not [one for one in attributes if RUNS.fullmatch(one)], (path, tag)
                for name in ("href", "src", "action", "hx-get", "hx-post", "formaction"):
                    assert re.match(r"[/?#]|data:image/|$", attributes.get(name, "")), (path, tag, attributes[name])
    assert seen >= 4


def test_a_refused_call_of_a_page_has_the_headers(shared: Live) -> None:
    for visitor in (Visitor(shared), Visitor(shared, "wrong")):
        check(visitor.get(places.HOME), "no session")
        check(visitor.get(places.HOME, HX_Request="true"), "no session")
        check(visitor.get(places.HOME, Origin="http://evil.example"), "origin")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_no_script_and_no_style(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    html = re.sub(r"\{([%{#]).*?[%}#]\}", "", text, flags=re.DOTALL)
    assert not re.search(r"\|\s*safe\b|autoescape\s+false|\bMarkup\b", text)
    assert not re.search(r"<style|\sstyle\s*=|javascript:|\son[a-z]+\s*=|\shx-on|\shx-vals\s*=\s*['\"]?js:", html)
    assert not re.search(r"<script(?![^>]*\ssrc=)", html)
    assert not re.search(r"https?://", html), "a page loads and links nothing of another host"
    assert re.search(r"<img(?![^>]*\salt=)", html) is None


def test_only_rendered_parts_count_as_html() -> None:
    found = {path.name for path in CONSOLE.glob("*.py")
             for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.alias) and node.name in ("Markup", "markupsafe")}
    # A part that a template has made, and lines of code whose texts Pygments has escaped.
    assert found <= {"overview.py", "highlighting.py"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_script_makes_no_html_of_texts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b|new Function", text)


def test_files_of_other_makers_are_unchanged_and_small() -> None:
    for one in VENDORED:
        content = (CONSOLE / "static" / one["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == one["sha256"], one["file"]
        assert (CONSOLE / "static" / f"{one['package'].partition('.')[0]}.LICENSE").is_file()
    assert sum((CONSOLE / "static" / name).stat().st_size for name in THEIRS) <= 120 * 1000
    assert {path.name for path in (CONSOLE / "static").iterdir() if path.suffix in (".js", ".css")} >= THEIRS


def test_own_files_are_small() -> None:
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in OURS) <= 21 * 1024
    assert (CONSOLE / "static" / "console.css").stat().st_size <= 20 * 1024


def test_files_are_compressed_and_kept_for_ever(shared: Live) -> None:
    visitor = Visitor(shared)
    for name, asset in assets.assets().items():
        url = assets.asset_url(name)
        plain, packed = visitor.get(url), visitor.get(url, Accept_Encoding="gzip, br")
        for answer in (plain, packed):
            assert answer.status == 200 and "set-cookie" not in answer.headers
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["vary"] == "Accept-Encoding"
        content = (CONSOLE / "static" / name).read_bytes()
        assert plain.body == content
        if asset.packed is not None:
            assert packed.headers["content-encoding"] == "gzip" and gzip.decompress(packed.body) == content
            assert len(packed.body) < len(content)
        assert visitor.get(url.replace(asset.digest, "0" * 12)).status == 404
    for name in ("vendored.json", "htmx.LICENSE", "..%2fsite.py", "%2e%2e%2fassets.py"):
        assert visitor.get(f"{places.STATIC}/0/{name}").status in (303, 404)


def test_a_stream_tells_of_changes(live: Live, visitor: Visitor) -> None:
    with visitor.stream(places.LIVE) as lines:
        assert next(lines) == "HTTP/1.1 200 OK"
        assert "content-type: text/event-stream; charset=utf-8" in map(str.lower, iter(lambda: next(lines), ""))
        assert "event: changed" in lines  # something may have changed before the stream
        run = live.submitted()
        assert "event: changed" in lines
        with visitor.stream(f"{places.LIVE}?run={run}") as of_run:
            assert next(of_run) == "HTTP/1.1 200 OK"
            assert "event: changed" in of_run
            live.move(run, PENDING)
            assert "event: changed" in of_run and "event: changed" in lines
        assert "event: tick" in lines


def test_a_stream_sends_the_overview_when_it_changes(live: Live, visitor: Visitor) -> None:
    with visitor.stream(f"{places.LIVE}?part=overview") as lines:
        run = live.submitted()
        live.run_on(run, "cpu-0")
        assert any(line.startswith("data: ") and run in line for line in lines)
    assert visitor.get(f"{places.LIVE}?part=other").status == 404


def test_the_stream_of_a_run_is_for_users_who_may_see_it(team: Live) -> None:
    run = team.submitted()
    other = entered(team, team.add_user("bob"))
    unknown = other.get(f"{places.LIVE}?run=local-99999")
    assert other.get(f"{places.LIVE}?run={run}").text.replace(run, "local-99999") == unknown.text
    assert unknown.status in (400, 404)


def test_a_stream_ends_with_its_session(live: Live, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "_CHECK", 0.0)
    token = visitor.csrf
    with visitor.stream(places.LIVE) as lines:
        assert "event: tick" in lines
        visitor.post(places.LOGOFF, {"csrf": token})
        assert list(lines)[-1:] != ["event: tick"]  # reads to the end
