"""The server stores submitted code once, for as long as an exec refers to it."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from live_server import Live, settings_for, tar
from workloads import workload

from local_backend.runtime import bundles
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.paths import HomePaths
from local_backend.runtime.removal import Remover
from local_backend.runtime.sizes import Sizes, on_disk
from local_backend.serving.server import make_home, open_database
from local_backend.store import execs

FOLDER = "--exec-start edtPyTorch --model-dir model --model-main train.py"
FILES = {"x.modelDir.tar": tar({"model/train.py": b"print(1)\n", "model/lib/a.py": b"A = 1\n", "model/empty/": b""})}


def stored(live: Live) -> list[str]:
    """Return the names of everything in the folder of bundles."""
    return sorted(os.listdir(live.settings.paths.bundles))


def removed(live: Live, *ids: str) -> None:
    """Delete execs as the supervisor does."""
    remover = Remover(live.settings.paths, live.database)
    for exec_id in ids:
        remover.remove(live.paths(exec_id))
    remover.finish()


def filled(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> HomePaths:
    settings = settings_for(tmp_path / "home")
    make_home(settings)
    return settings.paths


def test_the_same_code_is_stored_once(live: Live) -> None:
    first, second = (live.submitted(FOLDER, files=FILES) for _ in range(2))
    [name] = stored(live)
    assert [live.row(one).bundle for one in (first, second)] == [name, name]
    assert live.row(first).workload.program.bundle == name
    code = live.settings.paths.bundle(name) / "model"
    assert (code / "train.py").read_bytes() == b"print(1)\n" and (code / "empty").is_dir()
    assert not os.path.samefile(code / "train.py", live.paths(first).submitted / "model" / "train.py")


def test_a_change_of_a_name_mode_or_byte_changes_the_digest(tmp_path: Path) -> None:
    code = filled(tmp_path / "a", {"x/one": b"1", "y": b"2"})
    seen = {bundles.digest(code)}
    (code / "y").write_bytes(b"3")
    seen.add(bundles.digest(code))
    (code / "y").chmod(0o755)
    seen.add(bundles.digest(code))
    (code / "x").rename(code / "z")
    seen.add(bundles.digest(code))
    (code / "z" / "folder").mkdir()
    seen.add(bundles.digest(code))
    (code / "z" / "one").rename(code / "one")
    seen.add(bundles.digest(code))
    assert len(seen) == 6


def test_a_program_that_changes_its_copy_does_not_change_the_bundle(
    home: HomePaths, tmp_path: Path
) -> None:
    code = filled(tmp_path / "code", {f"many/{number}": b"#" * number for number in range(200)} | {"run.sh": b"#!x"})
    (code / "run.sh").chmod(0o750)
    name = bundles.keep(home, code)
    target = tmp_path / "copy"
    target.mkdir()
    bundles.copy(home, name, target)
    assert bundles.digest(target) == name and stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o750
    for path in (target / "many").iterdir():
        path.write_bytes(b"changed")
    assert bundles.digest(home.bundle(name)) == name


def test_code_is_stored_on_a_file_system_that_shares_no_blocks(
    home: HomePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    name = bundles.keep(home, filled(tmp_path / "code", {"a": b"1" * 3_000_000}))
    assert (home.bundle(name) / "a").read_bytes() == b"1" * 3_000_000


@pytest.mark.parametrize("harm", [
    lambda folder: (folder / "a").write_bytes(b"other"), lambda folder: (folder / "a").unlink(),
    lambda folder: (folder / "link").symlink_to("a"), lambda folder: folder.rename(folder.with_name("away")),
])
def test_a_changed_bundle_is_not_used(
    home: HomePaths, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    name = bundles.keep(home, filled(tmp_path / "code", {"a": b"1"}))
    harm(home.bundle(name))
    (tmp_path / "copy").mkdir()
    with pytest.raises(BundleLost):
        bundles.copy(home, name, tmp_path / "copy")


def test_the_same_code_replaces_a_changed_bundle(home: HomePaths, tmp_path: Path) -> None:
    code = filled(tmp_path / "code", {"a": b"1"})
    name = bundles.keep(home, code)
    (home.bundle(name) / "a").write_bytes(b"")  # as after a power failure
    assert bundles.keep(home, code) == name == bundles.digest(home.bundle(name))
    assert os.listdir(home.bundles) == [name]


def test_a_bundle_that_cannot_be_renamed_is_removed_before_the_next_write(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a submission could name a bundle of which a part is already removed."""
    home, real, threads = live.settings.paths, shutil.rmtree, list[str]()
    name = bundles.keep(home, filled(tmp_path / "code", {"a": b"1"}))

    def rmtree(folder: Path, **options: bool) -> None:
        threads.append(threading.current_thread().name)
        real(folder, **options)

    def rename(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    bundles.drop(home, live.database, {name})
    assert not stored(live)
    assert threads == [live.database.write(lambda _: threading.current_thread().name)]


def test_two_simultaneous_submissions_of_the_same_code_keep_one_bundle(
    home: HomePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, real = filled(tmp_path / "code", {"a": b"1"}), os.rename

    def rename(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", real)
        bundles.keep(home, code)  # the other submission finishes first
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    name = bundles.keep(home, code)
    assert os.listdir(home.bundles) == [name] == [bundles.digest(code)]


def test_a_bundle_is_removed_with_its_last_exec(live: Live) -> None:
    first, second = (live.submitted(FOLDER, files=FILES) for _ in range(2))
    other = live.submitted()
    assert len(stored(live)) == 2
    removed(live, first)
    assert live.row(second).bundle in stored(live) and len(stored(live)) == 2
    removed(live, second)
    assert stored(live) == [live.row(other).bundle]


def test_a_refused_submission_leaves_no_bundle(live: Live) -> None:
    kept = live.submitted(FOLDER, files=FILES)
    for files in ({"main.py": b"other"}, FILES):
        live.database.write(lambda c: c.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON execs BEGIN SELECT RAISE(ABORT, 'full'); END"))
        args = FOLDER if files is FILES else "--exec-start PyTorch --model-main main.py"
        assert live.submit(args, files).status >= 500
        live.database.write(lambda c: c.exec_driver_sql("DROP TRIGGER full"))
    assert stored(live) == [live.row(kept).bundle], "the bundle of the other exec must remain"


def test_a_bundle_removed_during_a_submission_is_stored_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = live.submitted(FOLDER, files=FILES)
    real = live.database.write

    def write(work: Callable[..., object]) -> object:
        if getattr(work, "__qualname__", "").startswith("accept."):
            monkeypatch.setattr(live.database, "write", real)
            removed(live, first)
            assert stored(live) == []
        return real(work)

    monkeypatch.setattr(live.database, "write", write)
    second = live.submitted(FOLDER, files=FILES)
    assert stored(live) == [live.row(second).bundle]


def test_a_starting_server_removes_unused_and_temporary_bundles(tmp_path: Path) -> None:
    live = Live(settings_for(tmp_path / "home"))
    kept = live.row(live.submitted(FOLDER, files=FILES)).bundle
    live.close()
    folder = live.settings.paths.bundles
    for name in ("1" * 64, f".{'2' * 64}.00112233.tmp"):
        filled(folder / name, {"a/b": b"x"})
    open_database(live.settings).close()
    assert os.listdir(folder) == [kept]


def test_a_bundle_counts_once_for_its_oldest_exec(live: Live) -> None:
    big = {"main.py": b"#" * 500_000}
    first, second = (live.submitted(files=big) for _ in range(2))
    sizes = Sizes(live.settings.paths)

    def measure() -> int:
        sizes.measure(live.database.read(execs.briefs))
        return sum(map(sizes.of, (first, second)))

    paths = live.settings.paths
    used = sum(on_disk(folder) for folder in (paths.jobs, paths.bundles, live.paths(first).root.parent))
    assert measure() <= used < measure() + 100_000, "the sizes must add up to the used space"
    assert sizes.of(first) > 1_000_000 > sizes.of(second) > 500_000
    removed(live, first)
    assert measure() == sizes.of(second) > 1_000_000


def test_lists_show_training_only(live: Live) -> None:
    shown = live.submitted()
    number = live.database.write(execs.next_number)
    part = workload(id=execs.exec_id(number), creator=live.settings.user, kind="search", parent=shown)
    row = live.database.write(lambda c: execs.create(c, number, part, "", None, "/"))
    assert (row.kind, row.parent, row.bundle) == ("search", shown, None)
    assert [one["id"] for one in live.call("GET", "/execs").json()] == [shown]
    assert live.database.read(execs.counts) == {"SUBMITTED": 1}


def test_a_row_of_an_earlier_server_is_read(live: Live) -> None:
    exec_id = live.submitted()
    flat = (Path(__file__).parent.parent / "data" / "workload_1.json").read_text().replace("local-2", exec_id)
    live.close()
    with closing(sqlite3.connect(live.settings.paths.database)) as made:
        made.execute("UPDATE execs SET spec = ?, bundle = NULL WHERE id = ?", [flat, exec_id])
        made.commit()
    database = open_database(live.settings)
    try:
        row = database.read(lambda c: execs.get(c, exec_id))
    finally:
        database.close()
    assert row is not None and row.user == "bob" and row.workload.program.main == "train.py"
