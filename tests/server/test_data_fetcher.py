"""Decisions of the fetcher: what to retry, where to resume, what to report."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import settings_for

from local_backend.data import fetcher, registry
from local_backend.data.errors import UNTOLD, DataError, DataUnavailable
from local_backend.data.order import DELIVERED, FAILED, FetchItem, FetchOrder, FetchOutcome, read_outcome
from local_backend.data.progress import Cancelled, Gauge, shown
from local_backend.runtime.fetching import Fetching


@pytest.fixture
def order(tmp_path: Path) -> FetchOrder:
    items = tuple(FetchItem(number, f"x{number}", "postgresql", "download", {"table_name": f"T{number}"}, "/f", "/c")
                  for number in (1, 2))
    return FetchOrder(items, *(str(tmp_path / name) for name in ("lock", "progress", "outcome")), 600, 2**30, True)


@pytest.fixture
def gauge(monkeypatch: pytest.MonkeyPatch) -> Gauge:
    made = Gauge(lambda text: None)
    monkeypatch.setattr(made, "sleep", lambda seconds: made.check())
    return made


def deliveries(monkeypatch: pytest.MonkeyPatch, *results: Any) -> list[int]:
    """Make each delivery return or raise the next result; return the list of the item numbers requested."""
    asked, left = [], iter(results)

    def deliver(item: FetchItem, values: object, order: FetchOrder, meter: Gauge) -> dict[str, Any]:
        asked.append(item.number)
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(fetcher, "deliver", deliver)
    return asked


def test_a_temporary_failure_is_retried(order: FetchOrder, gauge: Gauge, monkeypatch: pytest.MonkeyPatch) -> None:
    down = DataUnavailable("down")
    asked = deliveries(monkeypatch, down, down, {"bytes": 1}, down, {"bytes": 2})
    assert fetcher.fetch(order, {}, gauge) == FetchOutcome(DELIVERED, "", {1: {"bytes": 1}, 2: {"bytes": 2}})
    assert asked == [1, 1, 1, 2, 2]


def test_the_fetcher_gives_up_when_patience_ends(
    order: FetchOrder, gauge: Gauge, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries(monkeypatch, *[DataUnavailable("it is down")] * 3)
    impatient = FetchOrder(**{**vars(order), "patience": 0.0})
    outcome = fetcher.fetch(impatient, {}, gauge)
    assert outcome.state == FAILED
    assert outcome.message.startswith("T1 (postgresql): it is down; ") and "DLI_DATA_PATIENCE" in outcome.message


def test_a_delivered_item_is_not_refetched(order: FetchOrder, gauge: Gauge, monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries(monkeypatch, {"bytes": 1}, DataError("there is no T2"))
    failed = fetcher.fetch(order, {}, gauge)
    assert (failed.state, failed.message) == (FAILED, "T2 (postgresql): there is no T2")
    assert read_outcome(Path(order.outcome)) == FetchOutcome("", "", {1: {"bytes": 1}})
    asked = deliveries(monkeypatch, {"bytes": 2})
    assert fetcher.fetch(order, {}, gauge).delivered == {1: {"bytes": 1}, 2: {"bytes": 2}} and asked == [2]


def test_an_outcome_contains_no_secret(order: FetchOrder, gauge: Gauge, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {1: {"host": "db.example.com", "password": "planted-secret"}}
    for problem in (DataError, RuntimeError):
        deliveries(monkeypatch, problem("no way in to db.example.com with planted-secret"))
        outcome = fetcher.fetch(order, values, gauge)
        assert "db.example.com with ***" in outcome.message and "planted" not in outcome.message + outcome.trace
        assert bool(outcome.trace) == (problem is RuntimeError)


@pytest.mark.parametrize("password", ["e", "to", "é", "!"])
def test_a_mask_does_not_reveal_a_short_secret(
    order: FetchOrder, gauge: Gauge, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    """The text stays if no part of it can be the secret. If a part can be, the whole text is hidden."""
    values = {1: {"host": "h", "password": password}}
    deliveries(monkeypatch, DataError("Postgres: NOT_FOUND: tomatoes, née, wrong!"))
    assert fetcher.fetch(order, values, gauge).message.endswith("Postgres: NOT_FOUND: tomatoes, née, wrong!")
    for problem in (DataError, RuntimeError):
        deliveries(monkeypatch, problem(f"no way in with u:{password}@h"))
        outcome = fetcher.fetch(order, values, gauge)
        assert UNTOLD in outcome.message and "no way in" not in outcome.message + outcome.trace


def test_a_family_masks_multiline_secrets_and_texts_with_short_ones() -> None:
    kind = registry.find("sftp")
    family = kind.family(kind, {"private_key": "-----BEGIN\nab  c\n-----END", "password": "a"})
    assert family.without_secrets("bad key\n-----BEGIN\nab  c\n-----END of mine") == "bad key *** of mine"
    assert family.without_secrets("password a is wrong") == UNTOLD


def test_a_cancelled_fetcher_stops(order: FetchOrder, gauge: Gauge, monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries(monkeypatch, DataUnavailable("down"))
    gauge.cancel()
    with pytest.raises(Cancelled):
        fetcher.fetch(order, {}, gauge)


def test_a_fetcher_stops_with_the_server() -> None:
    gauge = Gauge(lambda text: None, lambda: False)
    gauge.start()
    with pytest.raises(Cancelled):
        gauge.sleep(60)
    gauge.close()


def test_a_new_server_removes_leftover_fetch_folders(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    paths = settings.paths.job("local-1", "")
    for folder in (paths.fetching, paths.data):
        folder.mkdir(parents=True)
    paths.spec.touch()
    fetching = Fetching(settings, cast(Any, None), cast(Any, None))
    fetching.turn([], lambda row: paths)
    fetching.close()
    assert [path.name for path in paths.state.iterdir()] == ["job.json"]


def test_a_full_disk_is_reported(order: FetchOrder, gauge: Gauge, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Iterator[None]:
        raise OSError(errno.ENOSPC, "no", "/disk/x")

    monkeypatch.setattr(fetcher, "_table", full)
    [first, _] = order.items
    item = FetchItem(**{**vars(first), "folder": str(Path(order.lock).parent / "f")})
    values = {"host": "h", "database": "d", "username": "u", "password": "p"}
    with pytest.raises(DataError, match="/disk/x"):
        fetcher.deliver(item, values, order, gauge)


def test_the_progress_sentence_names_item_share_and_rate() -> None:
    gauge = Gauge(lambda text: None)
    gauge.begin("s3://b/x")
    assert gauge.sentence == "fetching s3://b/x"
    gauge.expect(1_200_000_000)
    gauge.advance(492_000_000)
    assert gauge.sentence.startswith("fetching s3://b/x: 41 % of 1.2 GB, ") and gauge.sentence.endswith("/s")
    gauge.say("waiting for another job that fetches the same data")
    assert gauge.sentence == "fetching s3://b/x: waiting for another job that fetches the same data"
    gauge.advance(-492_000_000)
    gauge.expect(1_200_000_000)
    gauge.resume(120_000_000)
    assert gauge.sentence.startswith("fetching s3://b/x: 10 % of 1.2 GB") and gauge.arrived == 492_000_000
    gauge.expect(1_200_000_000)
    assert gauge.sentence.startswith("fetching s3://b/x: 0 % of 1.2 GB")


@given(st.integers(0, 2**60))
def test_sizes_are_displayed_briefly(size: int) -> None:
    number, unit = shown(size).split()
    scale = 1000 ** ["B", "kB", "MB", "GB", "TB"].index(unit)
    assert abs(float(number) - size / scale) <= (0.0501 if "." in number else 0.5)
    assert len(number) <= 3 or unit == "TB"


@pytest.mark.parametrize(("location", "label"), [
    ({"bucket": "b", "path": "x/y"}, "s3://b/x/y"), ({"bucket": "b", "paths": ["x", "y"]}, "s3://b/x, y"),
    ({"bucket": "b"}, "s3://b"), ({"paths": "a.npy, b.npy"}, "a.npy, b.npy (s3)"),
    ({"paths": "", "path": "x"}, "x (s3)"),
    ({"schema_name": "S", "table_name": "T"}, "S.T (s3)"), ({"query": "select 1"}, "a query (s3)"), ({}, "n (s3)"),
])
def test_an_item_has_a_readable_label(location: dict[str, Any], label: str) -> None:
    assert FetchItem(1, "n", "s3", "download", location, "", "").label == label
