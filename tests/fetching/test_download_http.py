"""Downloads from a web server, and all faults of a transfer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fetching_desk import Count, Desk, content
from range_server import Site, serving
from support import PATIENCE

from local_backend.data import transfer
from local_backend.data.download import release
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.progress import Cancelled
from local_backend.data.registry import find

LARGE = 5 * 2**20 + 12345


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use parts of 0.5 MiB, and almost no pause before a retry."""
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


def get(desk: Desk, site: Site, paths: str, job: int = 1, meter: Count | None = None, **values: str) -> int:
    """Download some paths of the site, and return their size in bytes."""
    return desk.get("http", {"url": site.url, **values}, {"paths": paths}, job, meter).size


def manifest(desk: Desk) -> dict[str, str]:
    """Return path → checksum of the only cache entry."""
    [key] = desk.kept()
    found = json.loads((desk.folder / "cache" / key / "manifest.json").read_text())
    return {one["path"]: one["sha256"] for one in found["files"]}


def forge(path: Path, data: bytes) -> None:
    """Replace the bytes of a cached file and restore its mtime, as a program of the same user could."""
    before = path.stat()
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o444)
    # The clock of a file system has a limited resolution.
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_large_small_and_empty_files_are_downloaded(desk: Desk, site: Site) -> None:
    site.files = {"/big.bin": content(LARGE), "/sub/a.txt": b"few", "/sub/empty": b""}
    meter = Count()
    assert get(desk, site, "big.bin, sub/a.txt, sub/empty", meter=meter) == LARGE + 3
    assert desk.read() == {"big.bin": site.files["/big.bin"], "sub/a.txt": b"few", "sub/empty": b""}
    assert (meter.expected, meter.bytes, meter.files) == ((LARGE + 3, 3), LARGE + 3, 3)
    assert manifest(desk) == {path: hashlib.sha256(data).hexdigest() for path, data in desk.read().items()}
    assert site.sent["/big.bin"] == LARGE


def test_a_single_file_keeps_its_name_without_folders(desk: Desk, site: Site) -> None:
    site.files = {"/a/b%20c.txt": b"few"}
    get(desk, site, "a/b c.txt")
    assert desk.read() == {"b c.txt": b"few"}


def test_paths_with_dots_are_normalized(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few", "/b/c": b"more"}
    get(desk, site, "./a, ./b/./c")
    assert desk.read() == {"a": b"few", "b/c": b"more"}


def test_a_program_can_add_files_but_not_change_cached_files(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few"}
    get(desk, site, "a")
    assert (desk.job(1) / "a").stat().st_mode & 0o777 == 0o444
    (desk.job(1) / "own").write_text("x")
    (desk.job(1) / "a").unlink()
    (desk.job(1) / "a").write_bytes(b"replaced")
    get(desk, site, "a", job=2)
    assert desk.read(2) == {"a": b"few"} and site.sent["/a"] == 3


def test_a_second_job_uses_the_cache(desk: Desk, site: Site) -> None:
    site.files = {"/a": content(LARGE)}
    get(desk, site, "a")
    meter = Count()
    get(desk, site, "a", job=2, meter=meter)
    assert desk.read(2) == desk.read(1)
    assert site.sent["/a"] == LARGE == meter.bytes


def test_a_new_version_gets_its_own_entry(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"old"}
    get(desk, site, "a")
    site.files["/a"] = b"new"
    get(desk, site, "a", job=2)
    assert (desk.read(1), desk.read(2)) == ({"a": b"old"}, {"a": b"new"})


def test_files_without_a_version_are_not_shared(desk: Desk, site: Site) -> None:
    site.versions = False
    site.files = {"/a": b"old"}
    get(desk, site, "a")
    site.files["/a"] = b"new"
    get(desk, site, "a", job=2)
    assert desk.read(2) == {"a": b"new"}


def test_jobs_with_different_credentials_do_not_share_entries(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few"}
    get(desk, site, "a", token="one")
    get(desk, site, "a", job=2, token="two")
    assert site.sent["/a"] == 6


def test_a_server_without_ranges_is_read_in_one_request(desk: Desk, site: Site) -> None:
    site.ranges = False
    site.files = {"/a": content(LARGE)}
    site.cuts = [1000]
    meter = Count()
    get(desk, site, "a", meter=meter)
    assert desk.read() == {"a": site.files["/a"]}
    assert meter.bytes == LARGE
    assert site.sent["/a"] == LARGE + 1000


@pytest.mark.parametrize("cuts", [[0], [1], [700_000, 5, 100], [1 << 19], [0, 0, 1]])
def test_a_broken_download_continues_where_it_broke(desk: Desk, site: Site, cuts: list[int]) -> None:
    site.files = {"/a": content(LARGE)}
    site.cuts = list(cuts)
    meter = Count()
    get(desk, site, "a", meter=meter)
    assert desk.read() == {"a": site.files["/a"]}
    assert meter.bytes == LARGE
    # The HTTP library may lose received bytes when the connection breaks; these are sent again.
    assert site.sent["/a"] - LARGE <= len(cuts) << 18


def test_a_fetch_fails_without_progress_and_a_retry_continues_it(
    desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_THREADS", 1)
    site.files = {"/a": content(LARGE)}
    site.cuts = [1 << 19] * 3 + [0] * 50
    with pytest.raises(DataUnavailable, match=r"/a|connection"):
        get(desk, site, "a")
    assert not (desk.job(1) / "a").exists()
    site.cuts = []
    get(desk, site, "a")
    assert desk.read() == {"a": site.files["/a"]}
    assert site.sent["/a"] == LARGE


def test_a_wrong_path_or_credential_is_rejected_with_the_reason(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few"}
    with pytest.raises(DataError, match=r"/missing: .* 404") as missing:
        get(desk, site, "missing")
    with pytest.raises(DataError, match="is a folder"):
        get(desk, site, "")
    site.authorization = "Bearer right"
    with pytest.raises(DataError, match="401") as refused:
        get(desk, site, "a", token="wr0ng")
    assert "wr0ng" not in str(refused.value)
    assert get(desk, site, "a", token="right") == 3
    site.status = 503
    with pytest.raises(DataUnavailable, match="503"):
        get(desk, site, "a", token="right")
    assert not isinstance(missing.value, DataUnavailable) and not isinstance(refused.value, DataUnavailable)


def test_a_refused_connection_is_a_temporary_failure(desk: Desk) -> None:
    with pytest.raises(DataUnavailable, match=r"http://127\.0\.0\.1:9/a "):
        desk.get("http", {"url": "http://127.0.0.1:9"}, {"paths": "a"})


def test_credentials_are_sent_only_to_the_server_of_the_connection(desk: Desk, site: Site) -> None:
    for location in ({"url": "http://127.0.0.1:9/a"}, {"paths": "http://127.0.0.1:9/a"}, {"url": "//127.0.0.1:9/a"}):
        with pytest.raises(DataError):
            desk.get("http", {"url": site.url, "token": "t"}, location)
    assert not site.sent


@pytest.mark.parametrize("values", [{"token": "t"}, {"username": "u", "password": "p"}, {}])
def test_a_redirect_does_not_leak_credentials(
    desk: Desk, site: Site, values: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither credentials of the connection nor those in ~/.netrc of the server's user reach the other host."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login evil password evil\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with serving(Site(files={"/there": b"few"})) as other:
        site.moved = {"/here": f"{other.url}/there"}
        get(desk, site, "here", **values)
        assert desk.read() == {"here": b"few"} and other.shown and set(other.shown) == {None}
        assert all(site.shown) == bool(values)


def test_only_an_altered_file_is_fetched_again(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few", "/b": b"more"}
    get(desk, site, "a,b")
    victim = (desk.job(1) / "a").resolve()
    victim.chmod(0o600)
    victim.write_bytes(b"bad")
    get(desk, site, "a,b", job=2)
    assert desk.read(2) == desk.read(1) == {"a": b"few", "b": b"more"}
    assert (site.sent["/a"], site.sent["/b"]) == (6, 4)


def test_an_altered_file_is_detected_although_its_mtime_was_restored(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few"}
    get(desk, site, "a")
    victim = (desk.job(1) / "a").resolve()
    before = victim.stat()
    forge(victim, b"bad")
    assert (victim.stat().st_mtime_ns, victim.stat().st_size) == (before.st_mtime_ns, before.st_size)
    get(desk, site, "a", job=2)
    assert desk.read(2) == {"a": b"few"} and site.sent["/a"] == 6


def test_files_from_before_a_reboot_are_verified_by_checksum(
    desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.files = {"/a": b"few", "/b": b"more"}
    get(desk, site, "a,b")
    victim = (desk.job(1) / "a").resolve()
    forge(victim, b"\0\0\0")
    # Data that the disk lost in a crash does not show in the timestamps.
    [key] = desk.kept()
    kept = desk.folder / "cache" / key / "manifest.json"
    said = json.loads(kept.read_text())
    said["files"][0]["ctime_ns"] = victim.stat().st_ctime_ns
    kept.write_text(json.dumps(said))
    monkeypatch.setattr("local_backend.data.download.boot_id", lambda: "another boot")
    get(desk, site, "a,b", job=2)
    assert desk.read(2) == {"a": b"few", "b": b"more"}
    meter = Count()
    get(desk, site, "a,b", job=3, meter=meter)
    assert "comparing checksums" not in meter.said, "a verified entry must not be compared again"


def test_a_cancelled_download_leaves_no_files(desk: Desk, site: Site) -> None:
    site.files = {"/a": content(LARGE)}
    meter, goes_on = Count(), threading.Event()

    def stall(path: str) -> None:
        meter.cancelled.set()
        goes_on.wait(PATIENCE)

    site.before = stall
    try:
        with pytest.raises(Cancelled):
            get(desk, site, "a", meter=meter)
        assert desk.kept() == []
        assert not desk.job(1).exists()
    finally:
        goes_on.set()


def test_two_jobs_with_the_same_data_share_one_download(desk: Desk, site: Site) -> None:
    site.files = {"/a": content(LARGE)}
    second, waits, done = Count(), threading.Event(), threading.Event()
    second.say = lambda text: waits.set() if "waiting" in text else None  # type: ignore[method-assign]

    def other() -> None:
        get(desk, site, "a", job=2, meter=second)
        done.set()

    started = threading.Event()

    def hold(path: str) -> None:
        if not started.is_set():
            started.set()
            threading.Thread(target=other, daemon=True).start()
        waits.wait(PATIENCE)

    site.before = hold
    get(desk, site, "a")
    assert done.wait(PATIENCE) and waits.is_set()
    assert desk.read(1) == desk.read(2)
    assert site.sent["/a"] == LARGE


def test_a_full_disk_leaves_no_partial_file(desk: Desk, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files = {"/a": content(LARGE)}
    written = [0]

    def full(fd: int, data: bytes, at: int) -> None:
        written[0] += 1
        if written[0] > 3:
            raise OSError(28, "No space left on device")
        os.pwrite(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_write", full)
        with pytest.raises(DataError, match="disk"):
            get(desk, site, "a")
    assert desk.read() == {}
    assert not [path for path in (desk.folder / "cache").rglob("*") if path.is_file() and path.stat().st_size > 1000]
    get(desk, site, "a")
    assert desk.read() == {"a": site.files["/a"]}


_CHILD = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from fetching_desk import Desk
from local_backend.data import transfer
transfer.SMALLEST, transfer._THREADS = 1 << 19, 1
Desk(Path({folder!r})).get("http", {{"url": {url!r}}}, {{"paths": "a,b"}})
"""


def test_a_download_continues_after_sigkill(desk: Desk, site: Site) -> None:
    site.files = {"/a": content(LARGE), "/b": b"few"}
    reached, goes_on = threading.Event(), threading.Event()

    def stall(path: str) -> None:
        # Parts are fetched one by one: the sixth request means that 5 parts have arrived.
        if site.sent["/a"] == 5 << 19 and not goes_on.is_set():
            reached.set()
            goes_on.wait(PATIENCE)

    site.before = stall
    code = _CHILD.format(tests=str(Path(__file__).parent), folder=str(desk.folder), url=site.url)
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert reached.wait(PATIENCE)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        goes_on.set()
    assert not any(desk.job(1).iterdir())
    meter = Count()
    get(desk, site, "a,b", meter=meter)
    assert desk.read() == {"a": site.files["/a"], "b": b"few"}
    assert (meter.bytes, meter.files) == (LARGE + 3, 2)
    # The part in transfer at the kill may be sent twice.
    assert site.sent["/a"] <= LARGE + (1 << 19)


def test_release_removes_the_job_folder_and_keeps_the_cache_entry(desk: Desk, site: Site) -> None:
    site.files = {"/a": b"few"}
    get(desk, site, "a")
    release(desk.job(1), desk.cache)
    assert not desk.job(1).exists() and len(desk.kept()) == 1
    get(desk, site, "a", job=2)
    assert site.sent["/a"] == 3


def test_a_stream_gets_an_address_and_credentials(site: Site) -> None:
    import base64

    assert find("http").open({"url": site.url, "token": "t"}).storage() == (  # type: ignore[attr-defined]
        "http", {"headers": {"Authorization": "Bearer t"}})
    basic = f"Basic {base64.b64encode(b'u:p').decode()}"
    assert find("https").open({"url": site.url, "username": "u", "password": "p"}).storage() == (  # type: ignore[attr-defined]
        "http", {"headers": {"Authorization": basic}})


@pytest.mark.parametrize("kind", ["http", "s3", "sftp", "hdfs"])
def test_a_multi_user_server_does_not_connect_to_loopback(kind: str) -> None:
    values = {"url": "http://127.0.0.1:9"} if kind != "sftp" else {"host": "127.0.0.1", "username": "u"}
    pytest.importorskip({"s3": "boto3", "sftp": "sshfs"}.get(kind, "requests"))
    family = find(kind).open(values, loopback=False)
    with pytest.raises(DataError, match=r"does not connect to the address 127\.0\.0\.1") as problem:
        list(family.files({"bucket": "b", "paths": "a"}))  # type: ignore[attr-defined]
    assert not isinstance(problem.value, DataUnavailable)


@pytest.mark.parametrize("location", [
    {"paths": "../one.csv"}, {"path": ".."}, {"paths": ["a.csv", "a/../../one.csv"]}, {"path": "/../one.csv"},
    {"url": "../one.csv"}, {"url": "/one.csv"}, {"url": "%2e%2e/one.csv"}, {"url": "a/%2E%2E%2f../one.csv"},
    {"url": "/setsquare.csv"}, {"url": "..", "path": "one.csv"}, {"url": "http://[", "path": "a"},
])
def test_paths_outside_the_address_of_the_connection_are_refused(
    desk: Desk, site: Site, location: dict[str, Any]
) -> None:
    site.files = {"/one.csv": b"1", "/sets/a.csv": b"a", "/setsquare.csv": b"2"}
    connection = {"url": f"{site.url}/sets"}
    with pytest.raises(DataError, match=r"outside|not a valid address"):
        desk.get("http", connection, location)
    assert not site.shown
    desk.get("http", connection, {"path": "b/../a.csv"}, job=2)
    assert desk.read(2) == {"a.csv": b"a"}


def test_a_query_is_kept_secret(desk: Desk, site: Site) -> None:
    site.files = {"/d/x.txt?sig=S": b"few"}
    get(desk, site, "d/x.txt", query="sig=S")
    assert desk.read() == {"x.txt": b"few"}
    family = find("http").open({"url": site.url, "query": "sig=S"}, loopback=True)
    [entry] = family.files({"paths": "d/x.txt"})
    assert "sig" not in entry.key
    with pytest.raises(DataError, match="'query'"):
        family.storage()
    for url, told in (("http://u:p@h/", "give them as 'username' and 'password'"), ("http://h/?s=1", "as 'query'")):
        with pytest.raises(DataError, match=told):
            find("http").check({"url": url})
