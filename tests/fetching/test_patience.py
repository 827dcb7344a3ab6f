"""A fetch from a server that stays broken ends after the configured patience, even with partial data in the cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fetching_desk import Desk, content
from range_server import Site

from local_backend.data import fetcher, transfer
from local_backend.data.order import DELIVERED, FAILED, FetchItem, FetchOrder, FetchOutcome
from local_backend.data.progress import Gauge

LARGE = 5 * 2**20
Fetched = Callable[[], FetchOutcome]


@pytest.fixture
def fetched(desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """A function that fetches the file `a` with a patience of 60 s; a pause only advances a simulated clock."""
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)
    monkeypatch.setattr(transfer, "_THREADS", 1)
    passed = [0.0]
    gauge = Gauge(lambda text: None)
    monkeypatch.setattr(gauge, "sleep", lambda seconds: passed.append(passed.pop() + seconds))
    monkeypatch.setattr(fetcher, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    item = FetchItem(1, "a", "http", "download", {"paths": "a"}, str(desk.job(1)), str(desk.folder / "cache"))
    order = FetchOrder((item,), *(str(desk.folder / name) for name in ("lock", "progress", "outcome")), 60, 2**30, True)
    return lambda: fetcher.fetch(order, {1: {"url": site.url}}, gauge)


def test_data_of_earlier_tries_does_not_extend_the_patience(site: Site, fetched: Fetched) -> None:
    site.files = {"/a": content(LARGE)}
    site.cuts = [1 << 19] * 3 + [0] * 1000
    outcome = fetched()
    assert outcome.state == FAILED and "6 tries in 31 s (DLI_DATA_PATIENCE)" in outcome.message


def test_new_data_extends_the_patience(site: Site, fetched: Fetched) -> None:
    site.files = {"/a": content(LARGE)}
    site.cuts = ([1 << 18] + [0] * 3 * 4) * 6
    assert fetched().state == DELIVERED


def test_data_of_a_changing_file_does_not_extend_the_patience(site: Site, fetched: Fetched) -> None:
    site.files = {"/a": content(LARGE)}
    left = list(range(1000))

    def change(path: str, at: int) -> None:
        if at == 1 << 20 and left:
            left.pop()
            site.files[path] = os.urandom(8) + site.files[path][8:]

    site.reading = change
    outcome = fetched()
    assert outcome.state == FAILED and left
    assert "/a changed" in outcome.message and "6 tries in 31 s" in outcome.message
