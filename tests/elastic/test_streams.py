"""Iterable data sets: every sample once per epoch, independent of other requests and random draws in between."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ordinary import Case, network, train
from resident import Resident
from small import fabric
from torch.utils.data import IterableDataset, get_worker_info

from local_backend.elastic.data import streams
from local_backend.elastic.data.seeding import look_again, seed_everything, watch
from local_backend.elastic.data.streams import StreamedSamples
from local_backend.elastic.errors import EngineError


class Noisy(IterableDataset):
    """Shuffles in a buffer and augments, with the global generators."""

    def __init__(self, count):
        self.count, self.epoch = count, None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        assert get_worker_info() is None
        buffer = []
        for number in range(self.count):
            buffer.append(number)
            if len(buffer) == 4:
                yield self._sample(buffer.pop(random.randrange(4)))
        while buffer:
            yield self._sample(buffer.pop())

    def _sample(self, number):
        return number, self.epoch, torch.rand(1).item() + np.random.rand()


class Own(Noisy):
    """Draws from its own generators: one of the data set and one that each pass makes."""

    def __init__(self, count):
        super().__init__(count)
        self.held = np.random.default_rng(1)

    def _sample(self, number):
        return number, self.held.random(), self.made.random()

    def __iter__(self):
        self.made = random.Random(self.epoch)
        return super().__iter__()


class Counted:
    """An iterable without a base class of PyTorch. Its length may be wrong."""

    def __init__(self, count, says):
        self.count, self.says = count, says

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return self.says


def keys(epoch, places):
    return [(epoch, place) for place in places]


EXPECTED = {}


def expected(epoch, kind=Noisy):
    """Return the samples of an epoch, read from the first to the last sample."""
    if (kind, epoch) not in EXPECTED:
        EXPECTED[kind, epoch] = StreamedSamples("training", kind(20), 7).take(keys(epoch, range(20)))
    return EXPECTED[kind, epoch]


requests = st.tuples(st.integers(-1, 3), st.sets(st.integers(0, 19), min_size=1, max_size=6).map(sorted))


@pytest.mark.parametrize("kind", [Noisy, Own])
@settings(max_examples=30, deadline=None)
@given(st.lists(requests, max_size=8))
def test_a_sample_does_not_depend_on_earlier_requests_and_draws(kind, asked):
    stream = StreamedSamples("training", kind(20), 7)
    assert len(stream) == 20
    watch({"the training set": stream.iterable}, {})
    for number, (epoch, places) in enumerate(asked):
        seed_everything(number)
        look_again()
        torch.manual_seed(number)
        random.seed(number)
        before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
        assert stream.take(keys(epoch, places)) == [expected(epoch, kind)[place] for place in places]
        assert before == (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())


def test_an_epoch_has_every_sample_once_and_epochs_differ():
    assert sorted(sample[0] for sample in expected(0)) == list(range(20))
    assert expected(0) != expected(1)
    assert {sample[1] for sample in expected(2)} == {2}


def test_the_samples_of_an_epoch_are_given_or_counted():
    said = []
    assert len(StreamedSamples("training", Noisy(20), 7, samples=5, say=said.append)) == 5
    assert len(StreamedSamples("training", Counted(6, 6), 7, say=said.append)) == 6
    assert len(StreamedSamples("training", Noisy(20), 7, counted=20, say=said.append)) == 20
    assert said == []
    assert len(StreamedSamples("training", Noisy(9), 7, say=said.append)) == 9
    assert said == [
        "counting the samples of the training stream in one pass; set samples_per_epoch= in FabricModel or train() "
        "to skip this"
    ]


@pytest.mark.parametrize(("name", "words"), [("training", "samples_per_epoch"), ("test", "__len__")])
def test_a_stream_without_an_end_is_refused(monkeypatch, name, words):
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield 1

    monkeypatch.setattr(streams, "COUNTING", 0.0)
    with pytest.raises(EngineError, match=f"the {name} stream has no length, and has not ended .*{words}"):
        StreamedSamples(name, Endless(), 7)


class Shrinking(Noisy):
    def __iter__(self):
        return iter(range(10 - (self.epoch or 0)))


class Growing(Noisy):
    def __iter__(self):
        return iter(range(10 + (self.epoch or 0)))


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Noisy(20), {"samples": 21}, "training stream ended after 20 samples in epoch 0; samples_per_epoch says 21"),
        (Counted(3, 4), {}, "ended after 3 samples in epoch 0; its __len__ says 4"),
        (Counted(5, 4), {}, r"returns more samples in epoch 0 than its __len__ says \(4\); samples_per_epoch=4"),
        (Shrinking(0), {}, "ended after 9 samples in epoch 1; the pass that counted the samples says 10"),
        (Growing(0), {}, r"returns more samples in epoch 1 than the pass that counted the samples says \(10\)"),
        ((i for i in range(3)), {}, "is a generator, which returns its samples only once"),
        (iter([1]), {}, "is a list_iterator, which returns its samples only once"),
    ],
)
def test_streams_of_unexpected_length_are_refused(dataset, options, words):
    with pytest.raises(EngineError, match=words):
        stream = StreamedSamples("training", dataset, 7, **options)
        for epoch in range(2):
            stream.take(keys(epoch, range(len(stream))))


class Passes(IterableDataset):
    """A stream that counts its passes at their ends; its samples may depend on the number."""

    def __init__(self, step):
        self.passes, self.step = 0, step

    def __iter__(self):
        yield from range(self.passes * self.step, self.passes * self.step + 4)
        self.passes += 1

    def __len__(self):
        return 4


def test_a_stream_that_returns_other_samples_after_a_pass_is_refused_at_the_end_of_the_first():
    stream = StreamedSamples("training", Passes(4), 7)
    assert stream.take(keys(0, range(3))) == [0, 1, 2]
    with pytest.raises(EngineError, match="training stream begins with another sample when"):
        stream.take([(0, 3)])


def test_a_stream_that_only_counts_its_passes_is_accepted():
    stream = StreamedSamples("training", Passes(0), 7)
    stream.note(lambda epoch: [1])
    for epoch in range(3):
        assert stream.take(keys(epoch, range(4))) == [0, 1, 2, 3]
        assert stream.noted(epoch).keys() == {1}


def test_a_stream_that_is_longer_than_an_epoch_starts_again():
    stream = StreamedSamples("training", Counted(9, 9), 7, samples=4)
    assert [stream.take(keys(epoch, range(4))) for epoch in range(2)] == [[0, 1, 2, 3]] * 2


def test_an_exception_of_the_stream_is_raised_and_the_stream_can_restart():
    class Breaks(Counted):
        def __iter__(self):
            yield 0
            raise KeyError("one")

    stream = StreamedSamples("training", Breaks(2, 2), 7)
    for _ in range(2):
        with pytest.raises(KeyError, match="one"):
            stream.take([(0, 1)])
        assert stream.take([(0, 0)]) == [0]


# --- trainings


class Collected:
    """A collate function that records the trained samples; the model gets ones."""

    def __init__(self):
        self.seen = []

    def __call__(self, samples):
        self.seen.append(samples)
        return torch.ones(len(samples), 4), torch.zeros(len(samples), dtype=torch.long)


def trained(datasets, *arguments, **options):
    collect = Collected()
    model, _ = fabric(fn_batch_collate=collect, driver_logger=object(), local_state=["seen"])
    model._job.datasets_function = datasets
    model.train(2, *arguments, **options)
    return collect.seen


@pytest.mark.usefixtures("result_dir")
def test_a_stream_is_trained_on_in_its_order():
    assert trained(lambda: Counted(7, 7), 4, 1) == [[0, 1, 2, 3], [4, 5, 6]] * 2
    assert trained(lambda: Counted(7, 7), 2, 2, drop_last=True, num_dataloader_threads=2) == [[0, 1], [2, 3]] * 2
    assert trained(lambda: (Counted(7, 7), Counted(3, 3)), 4, 1, samples_per_epoch=3) == [[0, 1, 2], [0, 1, 2]] * 2


@pytest.mark.usefixtures("result_dir")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": [1]}, r"a sampler needs a training set with __getitem__ .* is iterable \(Counted\)"),
        ({"samples_per_epoch": 9}, "training stream ended after 7 samples in epoch 0; samples_per_epoch says 9"),
    ],
)
def test_options_that_do_not_fit_a_stream_are_refused(options, words):
    with pytest.raises(EngineError, match=words):
        trained(lambda: Counted(7, 7), 4, 1, **options)


class Text(IterableDataset):
    """A stream with augmentation and unknown length."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        noise = torch.randn(6)
        for number in range(self.count):
            yield noise * random.random() + torch.randn(6) + np.random.rand(), number % 3


def stream_of_unknown_length():
    model = network()
    return Case(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), datasets=lambda: (Text(22), Text(9)),
        extras={"drop_last": True},
    )


@pytest.mark.integration
def test_disturbed_workers_give_the_bits_of_a_single_process(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "alone"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "now").touch()
    expected = train(stream_of_unknown_length, str(tmp_path / "now"))
    results = []
    training = Resident(
        tmp_path, 1, lambda: results.append(train(stream_of_unknown_length, str(tmp_path / "result" / "hurry")))
    )
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(3)
        training.wait_for_step(training.status["step"] + 6)
        training.kill(1)
        training.wait(lambda: training.status.get("deaths") == 1)
        training.finish()
    finally:
        training.abort()
    assert results == [expected]
