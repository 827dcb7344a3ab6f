"""The extractor refuses hostile archives with a sentence, within limits, and writes no file outside the target."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hostile_archives import block, damaged, harmless, kinds, member, names, pack, sizes, twins, zips
from live_server import Live, tar
from support import PATIENCE

from local_backend import limited_work
from local_backend.errors import Invalid, StorageFailed
from local_backend.settings import Limits
from local_backend.submit import unpacker
from local_backend.submit.unpack import unpack
from local_backend.submit.unpacker import components

ROOT = Path(limited_work.__file__).parent.parent
LIMITS = Limits(unpacked_bytes=80 << 20, unpacked_files=20_000, unpack_seconds=60, unpack_memory=192 << 20)
#: An upper limit of CPU seconds for every archive.
MOST_SECONDS = 10
#: Unpacks one archive as the process of the server does.
ALONE = """
import json, sys
sys.path.append(sys.argv[1])
from local_backend import limited_host
from local_backend.submit import unpacker
bounds = json.loads(sys.argv[4])
limited_host.limit(bounds)
print(*unpacker.run(sys.argv[2], sys.argv[3], bounds), sep="\\n")
"""
FAMILIES = {"names": names, "kinds": kinds, "twins": twins, "sizes": sizes, "damaged": damaged, "zips": zips}


@pytest.mark.parametrize("family", [
    pytest.param(name, marks=pytest.mark.integration) if name == "sizes" else name for name in FAMILIES
])
def test_hostile_archives_are_refused(family: str, tmp_path: Path) -> None:
    outside = sorted(path.name for path in tmp_path.iterdir())
    archives = list(FAMILIES[family]())
    assert archives
    for number, (name, content) in enumerate(archives):
        archive, target = tmp_path / "a.tar", tmp_path / f"t{number}" / "deep" / "er"
        archive.write_bytes(content)
        target.mkdir(parents=True)
        with pytest.raises(Invalid) as caught:
            unpack(archive, target, LIMITS)
        text = str(caught.value)
        assert caught.value.code == "submission.archive" and "\n" not in text and text.isprintable(), (name, text)
        assert "Traceback" not in text, (name, text)
        # The process that unpacks must find the fault itself. A process that crashes is reported like a slow one.
        assert "takes more than" not in text, (name, text)
        written = sum(path.lstat().st_size for path in target.rglob("*") if path.is_file())
        assert written <= LIMITS.unpacked_bytes, name
        links = [path for path in target.rglob("*") if not stat.S_ISREG(path.lstat().st_mode) and not path.is_dir()]
        assert not links, name
        assert list(target.parent.parent.iterdir()) == [target.parent], name
        assert list(target.parent.iterdir()) == [target], name
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("t")} - {"a.tar"}
    assert left == set(outside)


@dataclass
class Used:
    """The result of unpacking in a separate process: code, text, and CPU seconds."""

    code: int
    text: str
    seconds: float


def measured(archive: Path, target: Path, limits: Limits) -> Used:
    """Unpack without the limit of CPU time, which would stop a slow archive before its time is measured."""
    bounds = {"bytes": limits.unpacked_bytes, "files": limits.unpacked_files, "ratio": limits.unpack_ratio,
              "seconds": 100 * MOST_SECONDS, "memory": limits.unpack_memory}
    words = [str(ROOT), str(archive), str(target), json.dumps(bounds)]
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ALONE, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as said:
        code, _, text = said.read().decode().partition("\n")
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Used(int(code or -1), text, used.ru_utime + used.ru_stime)


@pytest.mark.integration
@pytest.mark.parametrize("family", [
    pytest.param(name, marks=pytest.mark.slow) if name == "sizes" else name for name in (*FAMILIES, "harmless")
])
def test_every_archive_uses_little_time_and_disk(family: str, tmp_path: Path) -> None:
    """CPU time does not depend on other work or a slow disk. Bytes and files are counted on the disk."""
    for number, (name, content) in enumerate((FAMILIES | {"harmless": harmless})[family]()):
        archive, target = tmp_path / "a.tar", tmp_path / f"t{number}"
        archive.write_bytes(content)
        target.mkdir()
        used = measured(archive, target, LIMITS)
        assert used.code == unpacker.REFUSED or family == "harmless", (name, used)
        assert used.seconds <= MOST_SECONDS, (name, used)
        there = [path.lstat() for path in target.rglob("*")]
        assert len(there) <= LIMITS.unpacked_files, name
        assert sum(found.st_size for found in there if stat.S_ISREG(found.st_mode)) <= LIMITS.unpacked_bytes, name
        assert sum(found.st_blocks * 512 for found in there) <= LIMITS.unpacked_bytes + 8192 * len(there), name
        shutil.rmtree(target)


def test_implicit_folders_count_like_files(tmp_path: Path) -> None:
    """Otherwise each member could create 63 folders."""
    deep = [member(f"d/{number}/" + "/".join("x" * 60) + "/f") for number in range(100)]
    (tmp_path / "a").write_bytes(pack(*deep))
    (tmp_path / "t").mkdir()
    with pytest.raises(Invalid, match=r"1000 .*DLI_MAX_UNPACKED_FILES"):
        unpack(tmp_path / "a", tmp_path / "t", Limits(unpacked_files=1000))
    assert len(list((tmp_path / "t").rglob("*"))) <= 1000


def test_a_million_empty_entries_use_little_time(tmp_path: Path) -> None:
    some = gzip.compress(block(b"d/._x") * 10_000, 1)
    (tmp_path / "a.tar").write_bytes(some * 100)
    (tmp_path / "t").mkdir()
    used = measured(tmp_path / "a.tar", tmp_path / "t", LIMITS)
    assert used.code == unpacker.REFUSED and used.seconds <= MOST_SECONDS, used
    assert not list((tmp_path / "t").iterdir())


def test_the_kernel_ends_an_extractor_over_its_cpu_limit(tmp_path: Path) -> None:
    """This limit is the last resort behind the other limits."""
    endless = (
        "import json, sys; sys.path.append(sys.argv[1]); from local_backend import limited_host\n"
        "limited_host.limit(json.loads(sys.argv[4]))\n"
        "while True: pass\n"
    )
    bounds = json.dumps({"bytes": 1, "files": 1, "ratio": 1, "seconds": 1, "memory": LIMITS.unpack_memory})
    words = [str(ROOT), "", "", bounds]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", endless, *words], timeout=PATIENCE, check=False)
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


def test_a_harmless_odd_archive_writes_only_expected_files(tmp_path: Path) -> None:
    for number, (_, content) in enumerate(harmless()):
        target = tmp_path / str(number)
        target.mkdir()
        (tmp_path / "a").write_bytes(content)
        try:
            unpack(tmp_path / "a", target, LIMITS)
        except Invalid as problem:
            assert problem.code == "submission.archive"
        assert {path.name for path in target.rglob("*")} <= {"d", "x", "ok.py"}


@pytest.mark.parametrize("name", ["names", "kinds"])
def test_a_refused_upload_leaves_no_files(live: Live, name: str) -> None:
    for what, content in list(FAMILIES[name]())[:6]:
        answer = live.submit("--exec-start PyTorch --model-dir d --model-main train.py", {"x.modelDir.tar": content})
        assert answer.error == (400, "submission.archive"), (what, answer)
        assert live.nothing_left(), what


def linked(tmp_path: Path, *links: tuple[str, str], kind: bytes = tarfile.SYMTYPE) -> dict[str, bytes]:
    """Unpack a folder `d` with these links. Return all files by their names."""
    target = tmp_path / "t"
    target.mkdir()
    packed = [member("d/lib/a.py", b"A", mode=0o755), *(member(name, kind=kind, link=to) for name, to in links)]
    (tmp_path / "a").write_bytes(pack(*packed))
    unpack(tmp_path / "a", target, LIMITS)
    assert not [path for path in target.rglob("*") if path.is_symlink()]
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


PLAIN = {"d/train.py": b"print(1)\n", "d/lib/a.py": b"A"}


def test_links_in_an_archive_become_copies(tmp_path: Path) -> None:
    """Contract, 1.4: 'content is a gzip-compressed tar'. The original client packs links of a folder as links."""
    found = linked(tmp_path, ("d/early.py", "late.py"), ("d/late.py", "lib/a.py"), ("d/pkg", "./lib"),
                   ("d/lib/up.py", "../train.py"), ("d/via.py", "pkg/up.py"))
    a, train = b"A", b"print(1)\n"
    assert found == PLAIN | {"d/early.py": a, "d/late.py": a, "d/pkg/a.py": a, "d/pkg/up.py": train,
                             "d/lib/up.py": train, "d/via.py": train}
    assert (tmp_path / "t/d/late.py").stat().st_mode & 0o777 == 0o755


def test_hard_links_in_an_archive_become_copies(tmp_path: Path) -> None:
    assert linked(tmp_path, ("d/b.py", "d/lib/a.py"), kind=tarfile.LNKTYPE) == PLAIN | {"d/b.py": b"A"}


@pytest.mark.parametrize("target", [
    "/etc/passwd", "../../x", "../" * 200 + "x", "missing", "l", "m", ".", "..", "lib/../../..", "lib/a.py/x",
])
def test_links_to_nothing_in_the_archive_are_left_out(tmp_path: Path, target: str) -> None:
    assert linked(tmp_path, ("d/l", target), ("d/m", "l")) == PLAIN


def test_folders_that_link_to_each_other_are_copied_once(tmp_path: Path) -> None:
    found = linked(tmp_path, ("d/x/y", "../lib"), ("d/lib/x", "../x"))
    assert found == PLAIN | {"d/x/y/a.py": b"A", "d/lib/x/y/a.py": b"A"}


def test_links_that_multiply_are_refused(tmp_path: Path) -> None:
    many = [member(f"d{n}/{name}", kind=tarfile.SYMTYPE, link=f"../d{n + 1}") for n in range(40) for name in "abcdef"]
    (tmp_path / "a").write_bytes(pack(*many, member("d40/x")))
    (tmp_path / "t").mkdir()
    with pytest.raises(Invalid, match=r"more than 500 (members|files)"):
        unpack(tmp_path / "a", tmp_path / "t", Limits(unpacked_files=500))


def test_copies_of_links_count_like_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pack(member("d/big", bytes(6000)), member("d/l", kind=tarfile.SYMTYPE, link="big")))
    (tmp_path / "t").mkdir()
    with pytest.raises(Invalid, match="10000 bytes"):
        unpack(tmp_path / "a", tmp_path / "t", Limits(unpacked_bytes=10_000))


def test_set_user_id_bits_are_dropped_and_modes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "a").write_bytes(pack(member("d/run.sh", mode=0o6777), member("d/data", mode=0o000)))
    unpack(tmp_path / "a", tmp_path / "t", LIMITS)
    assert (tmp_path / "t/d/run.sh").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "t/d/data").stat().st_mode & 0o7777 == 0o600


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_usual_tar_format_is_accepted(tmp_path: Path, form: int) -> None:
    (tmp_path / "t").mkdir()
    long = "d/" + "/".join(["long" * 10] * 2) + "/grüße an 'alle'.py"
    macos = {"SCHILY.xattr.com.apple.quarantine": "x", "LIBARCHIVE.creationtime": "1"}
    extra = macos if form == tarfile.PAX_FORMAT else {}
    (tmp_path / "a").write_bytes(pack(member(long, b"z" * 70_000, **extra), member("d/._long"), form=form))
    unpack(tmp_path / "a", tmp_path / "t", LIMITS)
    assert (tmp_path / "t" / long).stat().st_size == 70_000
    assert sorted(path.name for path in (tmp_path / "t/d").iterdir()) == ["long" * 10, "train.py"]


def test_many_files_and_a_dense_file_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    files = {f"d/{n}.txt": b"x" for n in range(500)} | {"d/zeros": bytes(8 << 20)}
    (tmp_path / "a").write_bytes(tar(files))
    unpack(tmp_path / "a", tmp_path / "t", LIMITS)
    assert len(list((tmp_path / "t/d").iterdir())) == 501


def test_a_file_of_zeros_is_no_bomb(tmp_path: Path) -> None:
    zeros = gzip.compress(bytes(1 << 20), 9) * 100
    (tmp_path / "a").write_bytes(gzip.compress(block(b"d/zeros", b"%011o\0" % (100 << 20))) + zeros
                                 + gzip.compress(bytes(1024)))
    (tmp_path / "t").mkdir()
    unpack(tmp_path / "a", tmp_path / "t", Limits())
    assert (tmp_path / "t/d/zeros").stat().st_size == 100 << 20 > 200 * (tmp_path / "a").stat().st_size


def test_a_small_archive_of_a_huge_file_is_a_bomb(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(block(b"d/x", b"%011o\0" % (2 << 30))))
    (tmp_path / "t").mkdir()
    with pytest.raises(Invalid, match="200 times its size"):
        unpack(tmp_path / "a", tmp_path / "t", Limits())
    assert not list((tmp_path / "t").iterdir())


def test_an_exceeded_limit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(tar({f"d/{n}": b"x" * 1000 for n in range(20)}))
    cases = ((Limits(unpacked_files=10), "more than 10 files and folders"), (Limits(unpacked_bytes=9000), "9000 bytes"))
    for limits, word in cases:
        target = tmp_path / word[:3]
        target.mkdir()
        with pytest.raises(Invalid, match=word):
            unpack(tmp_path / "a", target, limits)


def test_a_hanging_extractor_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from local_backend.submit import unpack as module

    monkeypatch.setattr(module, "_SLACK", 0)
    os.mkfifo(tmp_path / "a")  # The pipe has no writer.
    with pytest.raises(Invalid, match="more than 1 seconds"):
        unpack(tmp_path / "a", tmp_path, Limits(unpack_seconds=1))


def test_the_extractor_host_is_restarted_after_it_was_killed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(tar({"d/x": b"1"}))
    for number in range(3):
        target = tmp_path / str(number)
        target.mkdir()
        unpack(tmp_path / "a", target, LIMITS)
        assert (target / "d" / "x").read_bytes() == b"1"
        process = limited_work._host._process
        assert process is not None
        process.kill()


def test_several_archives_are_unpacked_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that takes long does not delay the others."""
    from local_backend.submit import unpack as module

    monkeypatch.setattr(module, "_SLACK", 0)
    os.mkfifo(tmp_path / "waits")
    with ThreadPoolExecutor(5) as pool:
        waits = pool.submit(unpack, tmp_path / "waits", tmp_path, Limits(unpack_seconds=60))
        (tmp_path / "a").write_bytes(tar({"d/x": b"1"}))
        for number in range(4):
            (tmp_path / str(number)).mkdir()
        for done in [pool.submit(unpack, tmp_path / "a", tmp_path / str(number), LIMITS) for number in range(4)]:
            done.result()
        assert not waits.done()
        (tmp_path / "waits").write_bytes(b"no archive")  # Now the extractor reads the pipe to its end.
        with pytest.raises(Invalid):
            waits.result()


def test_a_target_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(tar({"d/x": b"1"}))
    with pytest.raises(StorageFailed):
        unpack(tmp_path / "a", tmp_path / "absent", LIMITS)


@pytest.mark.parametrize(("name", "parts"), [(".", []), ("./", []), ("./a//b/", ["a", "b"]), ("a b/ü", ["a b", "ü"])])
def test_a_valid_name_is_split_into_components(name: str, parts: list[str]) -> None:
    assert components(name) == parts
