"""Snapshots and checkpoints: complete or absent, written while training continues, with any fault of the disk."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import PATIENCE, eventually
from torch import nn

from local_backend.elastic.errors import EngineError
from local_backend.elastic.position import Position
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state import artifacts
from local_backend.elastic.state.artifacts import frozen, train_dir
from local_backend.elastic.state.replica import ReplicaState
from local_backend.elastic.state.snapshots import SUFFIX, SnapshotFolder, Snapshotter


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _result_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "result"))
    monkeypatch.delenv("CHECKPOINT_DIR", raising=False)


def state(seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(3, 4, generator=generator),
        torch.randn(5, generator=generator).to(torch.bfloat16),
        torch.tensor(seed, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.empty(0, 3),
        torch.arange(4),
        torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
    ]
    return ReplicaState(f"meta {seed}".encode(), tensors)


def same(first, second):
    assert first.meta == second.meta
    for a, b in zip(first.tensors, second.tensors, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(a, b)
    return True


# --- files


def test_a_snapshot_is_read_as_it_was_written(tmp_path):
    folder = SnapshotFolder(tmp_path / "a" / "b")
    assert folder.newest() is None
    folder.write(Position(8), state(8), {"epoch": 2})
    found = folder.newest()
    assert (found.position, found.extra) == (Position(8), {"epoch": 2})
    assert same(found.load(), state(8))


def positions(folder):
    return sorted(int(path.name.removesuffix(SUFFIX)) // 4 for path in folder.glob(f"[0-9]*{SUFFIX}"))


def test_two_snapshots_up_to_the_position_of_the_driver_are_kept_and_temporary_files_are_removed(tmp_path):
    folder = SnapshotFolder(tmp_path)
    for steps in (4, 8, 1000, 12):
        (tmp_path / f".{steps}{SUFFIX}.abcd.tmp").write_bytes(b"torn")
        folder.write(Position(steps), state(steps))
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    assert positions(tmp_path) == [4, 8, 12, 1000], "a writer removes no snapshot"
    folder.prune(Position(8))
    assert positions(tmp_path) == [4, 8, 12, 1000]
    folder.prune(Position(12))
    assert positions(tmp_path) == [8, 12, 1000]
    folder.drop_after(Position(8))
    assert positions(tmp_path) == [8]
    assert folder.newest().position == Position(8)


def test_the_same_state_gives_the_same_bytes(tmp_path):
    paths = [SnapshotFolder(tmp_path / name).write(Position(3), state(3), {"epoch": 1}) for name in ("a", "b")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.one_of(st.none(), st.integers(0, 7)))
def test_a_damaged_snapshot_is_skipped(tmp_path, place, flip):
    """The file is cut at any place, has any bit changed, or has an extra byte."""
    folder = SnapshotFolder(tmp_path)
    folder.write(Position(1), state(1))
    path = folder.write(Position(2), state(2))
    whole = bytearray(path.read_bytes())
    at = int(place * len(whole))
    damaged = whole[:at]
    if flip is not None:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << flip
    path.write_bytes(damaged)
    assert folder.newest().position == Position(1)
    assert same(folder.newest().load(), state(1))
    path.write_bytes(whole)
    assert folder.newest().position == Position(2)
    path.write_bytes(whole + b"x")
    assert folder.newest().position == Position(1)


def test_a_snapshot_that_was_replaced_or_removed_raises_an_engine_error(tmp_path):
    folder = SnapshotFolder(tmp_path)
    path = folder.write(Position(1), state())
    found = folder.newest()
    path.write_bytes(b"something else of some length")
    with pytest.raises(EngineError, match=r"the snapshot .* cannot be read: it is not a snapshot of this version"):
        found.load()
    path.unlink()
    with pytest.raises(EngineError, match="cannot be read"):
        found.load()


def script(body, **environment):
    """Run a program that has a `state` of 4 MB and imports the modules under test."""
    text = "import os, sys, torch\nfrom pathlib import Path\n" + textwrap.dedent(
        """
        from local_backend.elastic import faults
        from local_backend.elastic.state.artifacts import write_checkpoint
        from local_backend.elastic.state.replica import ReplicaState
        from local_backend.elastic.position import Position
        from local_backend.elastic.state.snapshots import SnapshotFolder, Snapshotter
        faults.arm(1, os.environ)
        folder = SnapshotFolder(Path(sys.argv[1]))
        state = ReplicaState(b"meta", [torch.ones(1_000_000)])
        """
    )
    return lambda folder: subprocess.run(
        [sys.executable, "-c", text + textwrap.dedent(body), str(folder)],
        env={**os.environ, "RESULT_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_killed_writer_leaves_the_previous_snapshot(tmp_path):
    body = """
    for steps in (4, 8):
        faults.now(steps)
        folder.write(Position(steps), state)
    """
    ended = script(body, ELASTIC_FAULT="snapshot-rename:1:8:kill")(tmp_path)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(list(tmp_path.glob(".*.tmp"))) == 1
    folder = SnapshotFolder(tmp_path)
    assert folder.newest().position == Position(4)
    assert folder.newest().load().meta == b"meta"
    folder.write(Position(12), state())
    assert list(tmp_path.glob(".*.tmp")) == []


#: Files cannot grow beyond 1 MB, which gives the same errors as a full disk.
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
"""


def test_training_continues_without_a_snapshot_on_a_full_disk(tmp_path):
    body = FULL + textwrap.dedent(
        """
        clock = iter(range(100))
        snapshotter = Snapshotter(folder, print, print, 0.0, lambda: next(clock))
        for steps in (4, 8, 12):
            snapshotter.take(Position(steps), state)
        assert snapshotter.pause == 1
        snapshotter.close(wait=True)
        """
    )
    ended = script(body)(tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("cannot write a snapshot to") >= 2, "take did not wait for the previous snapshot"
    assert "File too large; training continues and tries again later" in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_a_checkpoint_on_a_full_disk_raises_an_error_with_its_path(tmp_path):
    body = FULL + textwrap.dedent(
        """
        write_checkpoint("1", {"": {"a": torch.ones(3)}, "_optimizer_state": {}})
        print(1)
        write_checkpoint("2", {"": {"a": torch.ones(1_000_000)}, "_optimizer_state": {}})
        """
    )
    ended = script(body)(tmp_path)
    assert ended.returncode == 1
    assert ended.stdout == "1\n"
    assert ended.stderr.splitlines()[-1] == (
        f"OSError: [Errno 27] the checkpoint {tmp_path}/model/train/model_epoch_2.pth could not be written: "
        "File too large"
    )
    assert len(list((tmp_path / "model" / "train").iterdir())) == 2


# --- the snapshotter


class Held(SnapshotFolder):
    """A folder that writes only after the test sets `go_on`."""

    def __init__(self, path):
        super().__init__(path)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def write(self, position, state, extra=None):
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return super().write(position, state, extra)


class Clock:
    """A clock that advances `step` seconds with each call."""

    def __init__(self):
        self.now, self.step = 0.0, 0.0

    def __call__(self):
        self.now += self.step
        return self.now


def test_snapshots_are_written_in_the_background_from_a_clone(tmp_path):
    folder, written, trouble, clock = Held(tmp_path), [], [], Clock()
    snapshotter = Snapshotter(folder, lambda *what: written.append(what), trouble.append, 10.0, clock)
    live = state(1)
    snapshotter.take(Position(4), live, {"epoch": 1})
    assert folder.begun.wait(PATIENCE)
    live.tensors[0].zero_()
    assert not snapshotter.due(1e9), "a second snapshot is due during the first"
    assert written == []
    folder.go_on.set()
    snapshotter.close(wait=True)
    assert trouble == []
    assert [(position, path) for position, path, _ in written] == [(Position(4), folder.newest().path)]
    assert same(folder.newest().load(), state(1))
    assert folder.newest().extra == {"epoch": 1}
    assert not snapshotter.due(1e9), "a snapshot is due after close"


@pytest.mark.parametrize(("pause", "wait"), [(0.0, 10.0), (0.05, 10.0), (0.5, 50.0)])
def test_a_snapshot_is_due_after_the_interval_and_100_pauses(tmp_path, pause, wait):
    clock, done = Clock(), threading.Event()
    snapshotter = Snapshotter(SnapshotFolder(tmp_path), lambda *_: done.set(), print, 10.0, clock)
    for _ in range(4):
        snapshotter.take(Position(1), state())
        snapshotter._writer.join(PATIENCE)
    clock.now, clock.step = 20.0, pause
    snapshotter.take(Position(1), state())
    snapshotter._writer.join(PATIENCE)
    assert done.is_set()
    assert snapshotter.pause == pytest.approx(pause)
    end = 20.0 + 2 * pause
    assert not snapshotter.due(end + wait - 0.1)
    assert snapshotter.due(end + wait + 0.1)
    snapshotter.close(wait=False)


def test_the_first_snapshots_of_a_worker_are_due_earlier(tmp_path):
    clock, waits = Clock(), []
    snapshotter = Snapshotter(SnapshotFolder(tmp_path), lambda *_: None, print, 8.0, clock)
    for number in range(5):
        waits.append(next(wait for wait in range(1, 20) if snapshotter._next <= clock.now + wait))
        snapshotter.take(Position(number), state())
    snapshotter.close(wait=True)
    assert waits == [1, 2, 4, 8, 8]


def test_a_snapshot_is_tried_again_after_a_failure(tmp_path):
    (tmp_path / "folder").write_text("a file where the folder should be")
    sentences, written = [], []
    snapshotter = Snapshotter(
        SnapshotFolder(tmp_path / "folder"), lambda *what: written.append(what), sentences.append, 0.0
    )
    snapshotter.take(Position(1), state(1))
    eventually(lambda: len(sentences) == 1, "the failure is reported")
    assert "training continues and tries again later" in sentences[0]
    eventually(lambda: snapshotter.due(time.monotonic()), "the snapshot is due again")
    (tmp_path / "folder").unlink()
    snapshotter.take(Position(2), state(2))
    snapshotter.close(wait=True)
    assert [what[0] for what in written] == [Position(2)]
    assert len(sentences) == 1


def test_a_folder_that_is_removed_at_the_end_is_no_failure(tmp_path):
    folder, calls = Held(tmp_path / "folder"), []
    snapshotter = Snapshotter(folder, lambda *what: calls.append(what), calls.append)
    (tmp_path / "folder").write_text("in the way")
    snapshotter.take(Position(1), state(1))
    snapshotter.close(wait=False)
    folder.go_on.set()
    snapshotter.close(wait=True)
    assert calls == []


# --- checkpoints


def model_and_optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def load(name):
    return torch.load(train_dir() / f"model_epoch_{name}.pth", weights_only=True)


def test_a_checkpoint_has_the_state_at_the_time_of_saving():
    model, optimizer = model_and_optimizer()
    job = TrainingJob(model, lambda: None, None, optimizer, epochs=1, batch=1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    step = optimizer.state_dict()["state"][0]["step"].item()
    names = ("1", "2", "final")
    for name in names:
        artifacts.save_checkpoint(job, name)
        with torch.no_grad():
            for tensor in [*model.parameters(), *(s["step"] for s in optimizer.state.values())]:
                tensor.add_(1)
    weight = before["0.weight"]
    for more, name in enumerate(names):
        found = load(name)
        assert list(found) == list(before)
        assert torch.equal(found["0.weight"], weight)
        weight = weight + 1  # add 1 per step, as above: x + 2 may differ from x + 1 + 1
        assert found["0.weight"].data_ptr() == found["2.weight"].data_ptr(), "tied weights were saved twice"
        assert found._metadata == model.state_dict()._metadata
        restored = load(f"{name}_optimizer_state")
        assert restored["state"][0]["step"].item() == step + more
        assert restored["param_groups"] == optimizer.state_dict()["param_groups"]


def test_the_files_equal_the_files_of_torch_save(tmp_path):
    model, optimizer = model_and_optimizer()
    artifacts.write_checkpoint(
        "x", {"": frozen(model.state_dict()), "_optimizer_state": frozen(optimizer.state_dict())}
    )
    for suffix, what in (("", model), ("_optimizer_state", optimizer)):
        with open(tmp_path / "plain.pth", "wb") as file:
            torch.save(what.state_dict(), file)
        written = (train_dir() / f"model_epoch_x{suffix}.pth").read_bytes()
        assert written == (tmp_path / "plain.pth").read_bytes()


def test_a_checkpoint_that_cannot_be_written_is_named():
    (train_dir() / "model_epoch_1.pth").mkdir(parents=True)
    with pytest.raises(OSError, match=r"the checkpoint .*model_epoch_1.pth could not be written: Is a directory"):
        artifacts.write_checkpoint("1", {"": {}, "_optimizer_state": {}})
    assert [path.name for path in train_dir().iterdir()] == ["model_epoch_1.pth"]
