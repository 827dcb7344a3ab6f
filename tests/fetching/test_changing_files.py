"""Files of a web server that change during a download: the result is one version, never a mixture."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fetching_desk import Count, Desk, content
from range_server import Site

from local_backend.data import registry, transfer
from local_backend.data.errors import DataChanged, DataError
from local_backend.data.kind import SourceFile
from local_backend.data.kinds.azure_files import Share

LARGE = 5 * 2**20 + 12345


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use parts of 0.5 MiB, and almost no pause before a retry."""
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


def get(desk: Desk, site: Site, path: str, meter: Count | None = None) -> None:
    """Download a file of the site."""
    desk.get("http", {"url": site.url}, {"paths": path}, meter=meter)


def test_a_file_that_changes_during_the_download_is_fetched_again(
    desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_THREADS", 1)
    old, new = content(LARGE, 1), content(LARGE, 2)
    site.files = {"/a": old}

    def change(path: str) -> None:
        if site.sent[path] > LARGE // 2:
            site.files[path] = new

    site.before = change
    meter = Count()
    get(desk, site, "a", meter=meter)
    assert desk.read() == {"a": new}
    assert any("changed" in said for said in meter.said)
    assert meter.bytes == LARGE
    assert len(desk.kept()) == 1


def test_a_file_that_changes_at_every_request_is_refused(desk: Desk, site: Site) -> None:
    site.files = {"/a": content(LARGE)}

    def change(path: str) -> None:
        with site.lock:
            site.files[path] = os.urandom(8) + site.files[path][8:]

    site.before = change
    with pytest.raises(DataChanged, match="/a "):
        get(desk, site, "a")
    assert desk.read() == {}


def overwritten_once(site: Site, path: str, at: int, new: bytes, date: str = "") -> None:
    """Replace the file once, when the server is about to read the byte `at` for an answer that has already begun."""
    def reading(asked: str, here: int) -> None:
        if (asked, here) == (path, at) and site.files[path] != new:
            site.files[path] = new
            if date:
                site.dates[path] = date

    site.reading = reading


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("version", ["ETag", "Last-Modified"])
def test_a_file_overwritten_during_its_last_answers_is_never_mixed(
    desk: Desk, site: Site, ranges: bool, version: str
) -> None:
    """The header of each answer names the old version."""
    old, new = content(LARGE, 1), content(LARGE, 2)
    site.files, site.ranges, site.versions = {"/a": old}, ranges, version == "ETag"
    if not site.versions:
        site.dates["/a"] = "Sat, 01 Nov 2025 10:00:00 GMT"
    date = "" if site.versions else "Sat, 01 Nov 2025 10:00:01 GMT"
    overwritten_once(site, "/a", 5 << 20, new, date)
    meter = Count()
    get(desk, site, "a", meter=meter)
    assert desk.read() == {"a": new}
    assert meter.bytes == LARGE
    assert meter.said.count("a file changed while it was read; starting again") == 1
    assert len(desk.kept()) == 1


def test_growth_of_a_file_without_a_version_is_noticed(desk: Desk, site: Site) -> None:
    """Without a version, the length is the only sign of a change."""
    old, new = content(LARGE, 1), content(LARGE + 1, 2)
    site.files, site.versions = {"/a": old}, False
    overwritten_once(site, "/a", 5 << 20, new)
    get(desk, site, "a")
    assert desk.read() == {"a": new}


def test_a_file_overwritten_in_every_attempt_is_refused(desk: Desk, site: Site) -> None:
    site.files = {"/a": content(LARGE)}

    def reading(path: str, at: int) -> None:
        if at == 5 << 20:
            site.files[path] = os.urandom(8) + site.files[path][8:]

    site.reading = reading
    with pytest.raises(DataChanged, match="/a "):
        get(desk, site, "a")
    assert desk.read() == {} and desk.kept() == []


def test_a_failed_check_at_the_end_of_a_download_is_repeated(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few"}
    asked: list[str] = []

    def once(path: str) -> None:
        asked.append(path)
        site.status = 503 if len(asked) == 1 else 0

    site.question = lambda path: once(path) if site.sent[path] else None
    get(desk, site, "a")
    assert desk.read() == {"a": b"few"} and site.sent["/a"] == 3 and len(asked) == 2


@pytest.mark.parametrize(("query", "whole"), [("sig=S", True), ("", False)])
def test_a_403_at_the_end_is_tolerated_only_for_a_signed_address(
    desk: Desk, site: Site, query: str, whole: bool
) -> None:
    path = "/a?sig=S" if query else "/a"
    site.files = {path: b"few"}

    def refuse(asked: str) -> None:
        site.status = 403 if site.sent[asked] else 0

    site.question = refuse
    if whole:
        desk.get("http", {"url": site.url, "query": query}, {"paths": "a"})
    else:
        with pytest.raises(DataError, match="403"):
            get(desk, site, "a")
    assert desk.read() == ({"a": b"few"} if whole else {})


@pytest.mark.parametrize("replaced", [True, False])
def test_a_changing_file_of_the_python_web_server_is_never_mixed(desk: Desk, tmp_path: Path, replaced: bool) -> None:
    """That server has no ranges, and its only version is the modification time."""
    old, new = content(LARGE, 1), content(LARGE, 2)
    served = tmp_path / "served"
    served.mkdir()
    (served / "a").write_bytes(old)
    os.utime(served / "a", (1, 1))

    def change() -> None:
        """Replace the file once, halfway through the answer."""
        if (served / "a").stat().st_mtime != 1:
            return
        if replaced:
            (served / "b").write_bytes(new)
            os.utime(served / "b", (2, 2))
            os.replace(served / "b", served / "a")
        else:
            with open(served / "a", "r+b") as file:
                file.write(new)
            os.utime(served / "a", (2, 2))

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def copyfile(self, source: Any, outputfile: Any) -> None:
            # The client closes a request for one byte before the rest is sent.
            with suppress(OSError):
                outputfile.write(source.read(LARGE // 2))
                if "Range" not in self.headers:
                    change()
                outputfile.write(source.read())

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(served))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            desk.get("http", {"url": f"http://127.0.0.1:{server.server_address[1]}"}, {"paths": "a"})
        finally:
            server.shutdown()
            thread.join()
    assert desk.read() == {"a": new}


def test_an_azure_share_checks_the_version_at_the_end() -> None:
    """With a stand-in for the Azure library, whose files can change between two reads."""
    pytest.importorskip("azure.core")
    about = SimpleNamespace(etag="one", size=3)
    client = SimpleNamespace(get_share_client=lambda share: client, get_file_client=lambda path: client,
                             get_file_properties=lambda: about)
    share = Share(registry.find("azure-files"), {"share": "s"})
    share._made, share._service = client, lambda: client  # type: ignore[method-assign]
    entry = SourceFile("a", "s/a", 3, "one")
    share.confirm(entry)
    for about.etag, about.size in (("two", 3), ("one", 4)):
        with pytest.raises(DataChanged, match="s/a "):
            share.confirm(entry)
