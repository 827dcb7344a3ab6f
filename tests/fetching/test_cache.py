"""The eviction and locking of cache entries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fetching_desk import Count, Desk
from hypothesis import given, settings
from hypothesis import strategies as st
from range_server import Site

from local_backend.data.cache import Cache, CacheEntry, CacheManifest
from local_backend.data.download import release
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.kind import SourceFile
from local_backend.data.transfer import WholeFile


def fill(desk: Desk, site: Site, name: str, job: int) -> None:
    """Download a file of 100 bytes for a job."""
    site.files[f"/{name}"] = name[:1].encode() * 100
    desk.get("http", {"url": site.url}, {"paths": name}, job)


def there(desk: Desk, site: Site, name: str) -> bool:
    """Return whether the cache has the file."""
    return any((desk.folder / "cache" / key / "files" / name).exists() for key in desk.kept())


def test_the_least_recently_used_entry_is_evicted_first(desk: Desk, site: Site) -> None:
    desk.limit = 250
    for number, name in enumerate("ab"):
        fill(desk, site, name, number)
        release(desk.job(number), desk.cache)
    for path in (desk.folder / "cache").iterdir():
        if path.is_dir():
            os.utime(path, (1, 1) if (path / "files" / "a").exists() else (2, 2))
    fill(desk, site, "a", 3)
    fill(desk, site, "c", 4)
    assert [there(desk, site, name) for name in "abc"] == [True, False, True]


def test_an_entry_in_use_stays_and_the_next_download_waits(desk: Desk, site: Site) -> None:
    desk.limit = 250
    fill(desk, site, "a", 1)
    fill(desk, site, "b", 2)
    with pytest.raises(DataUnavailable, match="200 of 250"):
        fill(desk, site, "c", 3)
    assert desk.read(1) == {"a": b"a" * 100}
    release(desk.job(1), desk.cache)
    fill(desk, site, "c", 3)
    assert [there(desk, site, name) for name in "abc"] == [False, True, True]


def test_data_larger_than_the_cache_limit_is_refused(desk: Desk, site: Site) -> None:
    desk.limit = 99
    with pytest.raises(DataError, match=r"100 .* 99.*cache_bytes") as problem:
        fill(desk, site, "a", 1)
    assert not isinstance(problem.value, DataUnavailable)
    site.ranges = False
    with pytest.raises(DataError, match="cache_bytes"):
        fill(desk, site, "b", 2)


def test_data_larger_than_the_free_disk_is_refused_before_the_first_byte(
    desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(desk.folder)
    monkeypatch.setattr("local_backend.data.cache.shutil.disk_usage", lambda path: usage._replace(free=50))
    with pytest.raises(DataError, match="50 bytes free"):
        fill(desk, site, "a", 1)
    assert not site.sent


def test_a_partial_entry_is_removed_with_its_last_job(desk: Desk, site: Site) -> None:
    site.files["/a"] = b"x" * 100
    site.before = lambda path: setattr(site, "status", 500)
    with pytest.raises(DataUnavailable):
        desk.get("http", {"url": site.url}, {"paths": "a"})
    assert len(desk.kept()) == 1
    desk.cache.sweep()
    assert len(desk.kept()) == 1, "the job may try again, so the entry must stay"
    release(desk.job(1), desk.cache)
    assert desk.kept() == []
    assert sorted(path.name for path in (desk.folder / "cache").iterdir()) == [".room.lock", "salt"]


def test_the_sweep_keeps_foreign_folders(desk: Desk) -> None:
    mine = desk.cache.folder / "thesis"
    mine.mkdir()
    (mine / "chapter-1").write_text("of who said that the cache is to lie in this folder")
    desk.limit = 1
    desk.cache.sweep()
    assert (mine / "chapter-1").exists()


def test_names_of_entries_reveal_nothing(desk: Desk) -> None:
    found = [SourceFile("a", "a", 1, "v")]
    one = desk.cache.entry("http", {"password": "secret"}, found, "x")
    assert one.folder == desk.cache.entry("http", {"password": "secret"}, found, "y").folder
    other = Cache(desk.folder / "other", 1)
    assert one.folder.name != other.entry("http", {"password": "secret"}, found, "x").folder.name
    assert (desk.folder / "cache").stat().st_mode & 0o777 == 0o700
    assert (desk.folder / "cache" / "salt").stat().st_mode & 0o777 == 0o600


_ENTRIES = st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.booleans()), max_size=8)


@settings(max_examples=40)
@given(_ENTRIES, st.integers(1, 100))
def test_only_unused_entries_are_evicted(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, bool, bool]], wanted: int
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    cache = Cache(folder / "cache", 100)
    job = folder / "job"
    job.mkdir()
    made: list[tuple[CacheEntry, int, bool, bool]] = []
    for number, (size, used, whole) in enumerate(entries):
        entry = CacheEntry(cache.folder / f"{number:040x}")
        entry.folder.mkdir()
        if whole:
            entry.complete(CacheManifest("b", (WholeFile("a", size, "", 0, 0),)))
        else:
            entry.expect(size)
        if used:
            entry.use(job)
        os.utime(entry.folder, (number + 1, number + 1))
        made.append((entry, size, used, whole))
    new = CacheEntry(cache.folder / f"{99:040x}")
    try:
        cache.make_room(wanted, new)
    except DataUnavailable:
        assert not any(entry.folder.exists() for entry, _, used, _ in made if not used)
        return
    left = [(number, one) for number, one in enumerate(made) if one[0].folder.exists()]
    assert all(entry.folder.exists() for entry, _, used, _ in made if used)
    assert sum(_held(one) for _, one in left) + wanted <= 100
    kept = [number for number, (_, _, used, _) in left if not used]
    gone = [number for number, (entry, _, used, whole) in enumerate(made) if whole and not entry.folder.exists()]
    assert all(whole for _, (_, _, used, whole) in left if not used)
    assert not kept or not gone or max(gone) < min(kept), "the oldest entries must be evicted first"


def _held(one: tuple[CacheEntry, int, bool, bool]) -> int:
    return one[0].size()


def test_a_job_that_waits_for_a_lock_can_be_cancelled(desk: Desk) -> None:
    from local_backend.data.progress import Cancelled

    entry = desk.cache.entry("http", {}, [SourceFile("a", "a", 1, "v")], "x")
    meter = Count()
    with desk.cache.locked(entry, Count()):
        meter.say = lambda text: meter.cancelled.set()  # type: ignore[method-assign]
        with pytest.raises(Cancelled), desk.cache.locked(entry, meter):
            pass


def test_a_removed_lock_file_is_created_again(desk: Desk) -> None:
    entry = desk.cache.entry("http", {}, [SourceFile("a", "a", 1, "v")], "x")
    with desk.cache.locked(entry, Count()):
        Path(entry.lock_path).unlink()
        with desk.cache.locked(entry, Count()):
            assert entry.lock_path.exists()
