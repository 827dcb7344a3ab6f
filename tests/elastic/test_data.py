"""Streams: every batch is the same as if it were loaded alone, after any plan and with any number of processes."""

import itertools
import multiprocessing
import os
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import PATIENCE, eventually
from torch.utils.data import Dataset

from local_backend.elastic.data.feed import AHEAD, Feed
from local_backend.elastic.data.loading import Loader, LoaderLost, Stream, count_correct, keys_of


class Noisy(Dataset):
    """Samples with random numbers of all three generators."""

    def __len__(self):
        return 1000

    def __getitem__(self, i):
        return i, torch.rand(1).item() + random.random() + np.random.rand()


class Breaks(Noisy):
    def __getitem__(self, i):
        if i == 5:
            raise KeyError("five")
        if i == 6:
            os._exit(3)
        return i, float(i)


class Counts(Noisy):
    """Samples that record their loading in a file."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, i):
        with open(self.path, "a") as file:
            file.write(f"{i}\n")
        return i, float(i)

    def seen(self):
        return [int(line) for line in self.path.read_text().split()] if self.path.exists() else []


class Seeks(Noisy):
    """Reads from a file that stays open. Both loader processes seek before one of them reads."""

    def __init__(self, path):
        self.file = path.open("rb", buffering=0)
        self.together = multiprocessing.get_context("fork").Barrier(2)

    def __getitem__(self, i):
        self.file.seek(i)
        self.together.wait(PATIENCE)
        return i, self.file.read(1)[0]


def batch(epoch, step):
    return keys_of(epoch, range(step * 3, step * 3 + 3))


def plan(labels):
    return ((label, batch(*label)) for label in labels)


def endless(epoch, step):
    """Yield the labels of all steps from here, ten per epoch."""
    return ((n // 10, n % 10) for n in itertools.count(epoch * 10 + step))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def stream_of():
    made = []

    def make(dataset, threads, **options):
        made.append(Stream(dataset, 7, threads=threads, **options))
        return made[-1]

    yield make
    for stream in made:
        stream.close()


@pytest.fixture(scope="module")
def expected():
    stream = Stream(Noisy(), 7)
    labels = [(epoch, step) for epoch in range(6) for step in range(10)]
    stream.plan(plan(labels))
    return {label: stream.take(label) for label in labels}


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_batches_are_the_same_with_any_number_of_processes_and_epochs(stream_of, expected, threads):
    stream = stream_of(Noisy(), threads)
    stream.plan(plan(endless(0, 0)))
    for label in itertools.islice(endless(0, 0), 25):
        assert same(stream.take(label), expected[label])


@pytest.mark.parametrize("threads", [0, 2])
@settings(deadline=None, max_examples=25)
@given(
    data=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=12, unique=True), st.integers(0, 12)
        ),
        max_size=8,
    )
)
def test_each_batch_has_the_content_of_its_label_after_any_plan(expected, threads, data):
    stream = _shared(threads)
    for labels, taken in data:
        stream.plan(plan(labels))
        for label in labels[:taken]:
            assert same(stream.take(label), expected[label])


_streams = {}


def _shared(threads):
    """Return one stream for all examples, so that they also form one long history."""
    if threads not in _streams:
        _streams[threads] = Stream(Noisy(), 7, threads=threads)
    return _streams[threads]


@pytest.fixture(scope="module", autouse=True)
def _close_shared():
    yield
    for stream in _streams.values():
        stream.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_stream_loads_ahead_across_epochs_up_to_its_limit(stream_of, tmp_path, threads):
    data = Counts(tmp_path / "seen")
    stream = stream_of(data, threads)
    stream.plan(plan(endless(0, 9)))
    samples = 3 * AHEAD * threads
    eventually(lambda: len(data.seen()) == samples, "the stream loads batches before the first one is used")
    stream.take((0, 9))
    eventually(lambda: len(data.seen()) == samples + 3, "the stream loads 1 more batch for each batch used")


def test_loaded_batches_are_used_if_planned_again_and_discarded_otherwise(stream_of, tmp_path):
    data = Counts(tmp_path / "seen")
    stream = stream_of(data, 2)
    stream.plan(plan([(0, n) for n in (1, 2, 3, 4)]))
    eventually(lambda: len(data.seen()) == 12, "the stream has loaded batches ahead")
    stream.take((0, 1))
    stream.plan(plan([(0, n) for n in (9, 4, 2)]))
    assert [stream.take((0, n))[0].tolist() for n in (9, 4, 2)] == [[27, 28, 29], [12, 13, 14], [6, 7, 8]]
    assert sorted(data.seen()) == [*range(3, 15), 27, 28, 29]


@pytest.mark.parametrize("threads", [0, 1])
def test_only_the_next_batch_of_the_plan_can_be_taken(stream_of, threads):
    stream = stream_of(Noisy(), threads)
    with pytest.raises(LookupError, match="is not"):
        stream.take((0, 0))
    stream.plan(plan([(0, 1)]))
    with pytest.raises(LookupError, match="not the next"):
        stream.take((0, 0))
    stream.plan(plan([(0, 1)]))
    stream.take((0, 1))
    with pytest.raises(LookupError, match="is not"):
        stream.take((0, 2))


@pytest.mark.parametrize("threads", [0, 1])
def test_an_exception_of_the_data_set_is_raised_only_for_its_batch(stream_of, threads):
    stream = stream_of(Breaks(), threads)
    stream.plan(iter([("a", [(0, 1)]), ("b", [(0, 5)]), ("c", [(0, 2)])]))
    assert stream.take("a")[0].tolist() == [1]
    with pytest.raises(KeyError, match="five"):
        stream.take("b")
    assert stream.take("c")[0].tolist() == [2]
    stream.plan(iter([("d", [(0, 5)])]))
    stream.plan(iter([("e", [(0, 3)])]))
    assert stream.take("e")[0].tolist() == [3]


def test_a_killed_loader_process_is_reported_only_at_the_next_take(stream_of):
    others = multiprocessing.active_children()
    stream = stream_of(Noisy(), 2)
    stream.plan(plan(endless(0, 0)))
    stream.take((0, 0))
    victim = next(child for child in multiprocessing.active_children() if child not in others)
    os.kill(victim.pid, signal.SIGKILL)
    # The handler of SIGCHLD must not raise here, because an optimizer step could run here. With WNOWAIT, the handler
    # finds the dead process.
    os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(LoaderLost, match=rf"pid {victim.pid}\) was killed by signal 9: SIGKILL"):
        stream.take((0, 1))
    with pytest.raises(LoaderLost):
        stream.take((0, 1))
    stream.plan(plan(endless(1, 0)))
    with pytest.raises(LoaderLost):
        stream.take((1, 0))


def test_a_loader_process_that_exits_during_a_take_is_reported(stream_of):
    stream = stream_of(Breaks(), 1)
    stream.plan(iter([("a", [(0, 6)])]))
    with pytest.raises(LoaderLost, match="ended with exit code 3"):
        stream.take("a")


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError, FileNotFoundError])
def test_a_connection_that_a_dying_loader_process_closes_is_its_end(stream_of, error):
    stream = stream_of(Noisy(), 1)
    stream.plan(plan(endless(0, 0)))
    stream.take((0, 0))

    def broken():
        # The process is not waited for: its connections close before it has ended.
        os.kill(stream._processes[0].pid, signal.SIGKILL)
        raise error
        yield

    stream._batches = broken()
    with pytest.raises(LoaderLost, match="was killed by signal 9: SIGKILL"):
        for number in range(1, 9):  # some batches are loaded already
            stream.take((0, number))


class Kills(Noisy):
    """Samples that kill a process while a take waits for a batch that never arrives."""

    def __init__(self, victim):
        self.victim = victim

    def __getitem__(self, index):
        os.kill(self.victim, signal.SIGKILL)
        signal.pause()


def test_a_killed_loader_of_another_stream_is_reported_during_a_take(stream_of):
    others = multiprocessing.active_children()
    stream_of(Noisy(), 1)
    (victim,) = [child for child in multiprocessing.active_children() if child not in others]
    stream = stream_of(Kills(victim.pid), 1)
    stream.plan(iter([("a", [(0, 6)])]))
    with pytest.raises(LoaderLost, match=rf"pid {victim.pid}\) was killed by signal 9: SIGKILL"):
        stream.take("a")


class Waits(Noisy):
    """Samples that signal their process and then load forever."""

    def __init__(self, path):
        self.path = path

    def __getitem__(self, i):
        os.mkfifo(self.path)
        with open(self.path) as file:
            return file.read()


def test_close_ends_all_loader_processes_even_during_a_batch(tmp_path):
    others = multiprocessing.active_children()
    stream = Stream(Waits(tmp_path / "pipe"), 7, threads=1)
    (child,) = (child for child in multiprocessing.active_children() if child not in others)
    stream.plan(iter([("a", [(0, 0)])]))
    eventually((tmp_path / "pipe").exists, "loading has begun")
    stream.close()
    stream.close()
    assert child.exitcode is not None


def test_loader_processes_do_not_keep_private_descriptors(stream_of):
    reader, writer = os.pipe()
    stream = stream_of(Noisy(), 1, private=[writer])
    stream.plan(iter([("a", [(0, 0)])]))
    stream.take("a")
    os.close(writer)
    assert os.read(reader, 1) == b"", "another process still holds the write end"
    os.close(reader)


def test_loader_processes_have_their_own_positions_in_open_files(stream_of, tmp_path):
    (tmp_path / "data").write_bytes(bytes(range(6)))
    stream = stream_of(Seeks(tmp_path / "data"), 2)
    stream.plan(plan([(0, 0), (0, 1)]))
    assert [stream.take((0, step))[1].tolist() for step in (0, 1)] == [[0, 1, 2], [3, 4, 5]]


def test_loader_processes_do_not_change_the_random_state_of_this_process(stream_of):
    stream = stream_of(Noisy(), 1)
    before = torch.get_rng_state()
    stream.plan(plan(endless(0, 0)))
    stream.take((0, 0))
    assert torch.equal(torch.get_rng_state(), before)


def test_passes_of_a_users_loader_do_not_disturb_each_other(expected):
    loader = Loader(Noisy(), 7)
    keys = [batch(0, step) for step in range(4)]
    for step, (first, second) in enumerate(zip(loader.load(keys), loader.load(keys), strict=True)):
        assert same(first, expected[0, step])
        assert same(second, expected[0, step])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 8)), max_size=20))
def test_a_feed_gives_each_wanted_batch_once_and_no_more_than_requested(history):
    feed, loaded = Feed(), set()
    for first, asked, back in history:
        feed.replace(((n, [(0, n)]) for n in itertools.count(first)), loaded, 8)
        loaded &= {label for label, _ in feed.due}
        before = len(feed.given)
        for _ in range(asked):
            next(feed)
        assert len(feed.given) == before + asked
        wanted = [request.label for request in feed.given if request.wanted]
        assert len(wanted) == len(set(wanted))
        assert not loaded & set(wanted)
        # No gap: up to the last batch given, every batch is loaded or requested.
        given_now = [request.label for request in list(feed.given)[before:]]
        assert set(range(first, max(given_now, default=first - 1) + 1)) <= loaded | set(wanted)
        for _ in range(min(back, len(feed.given))):
            request = feed.given.popleft()
            loaded |= {request.label} if request.wanted else set()


def test_a_feed_gives_all_batches_again_after_a_change():
    feed = Feed()
    feed.replace(((n, [(0, n)]) for n in itertools.count()), (), 4)
    assert [next(feed) for _ in range(3)] == [(n, [(0, n)], b"") for n in range(3)]
    feed.changes = b"rate"
    feed.again()
    assert [request.wanted for request in feed.given] == [False] * 3
    feed.replace(((n, [(0, n)]) for n in itertools.count(1)), (), 4)
    assert not any(request.wanted for request in feed.given), "a batch from before the change is still wanted"
    assert [next(feed) for _ in range(5)] == [(number + 3, [(0, number + 1)], b"rate") for number in range(5)]
    assert [request.label for request in feed.given if request.wanted] == [1, 2, 3, 4, 5]


def test_dropped_batches_are_loaded_again_with_other_samples(stream_of):
    stream = stream_of(Noisy(), 2)
    stream.plan(plan([(0, step) for step in range(8)]))
    stream.take((0, 0))
    stream.drop()
    stream.plan(((0, step), keys_of(0, [500 + step])) for step in range(1, 8))
    assert [stream.take((0, step))[0].tolist() for step in range(1, 8)] == [[500 + step] for step in range(1, 8)]


def test_labels_of_packed_samples_count_as_fractions_of_their_samples():
    outputs, labels = torch.eye(3)[torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])], torch.tensor([0, 1, 2, 0, 1, 2, 1, 2])
    assert [count_correct(outputs, labels, samples) for samples in (None, 8, 4, 2)] == [6, 6, 3, 2]
