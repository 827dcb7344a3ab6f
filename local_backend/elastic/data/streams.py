"""Iterable data sets: the workers together train on every sample of a stream exactly once per epoch.

Sample i of an epoch is the i-th sample that the stream gives in that epoch; the order is never shuffled. Every worker
iterates over the whole stream and keeps the samples of its own shards. So the stream must give the same samples in
every worker. When the stream begins, all generators are seeded from (seed, epoch), including the stream's own. From
then on the stream has its own generator states, which other random numbers of the worker do not influence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from local_backend.elastic.data import seeding
from local_backend.elastic.data.seeding import seed_everything
from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import stream_seed
from local_backend.elastic.script.generators import Generators, find, restore
from local_backend.elastic.state.fingerprints import digest

#: (epoch, position of the sample in the stream); epoch -1 is validation.
Key = tuple[int, int]


#: Why a stream must not go on where its last pass has ended, as a message.
KEEPS_STATE = (
    "The stream keeps a value from pass to pass, such as a position or a number of passes, and a worker that starts "
    "later would not have it. Begin at the first sample in each __iter__(). For another order in each epoch, define "
    "set_epoch(epoch), or draw random numbers from torch, numpy or random: they are seeded for each epoch"
)
#: Most seconds of the pass that counts the samples of a stream. The stream may have no end.
COUNTING = 600.0


class StreamedSamples:
    """The samples of an iterable data set by their positions. For one thread and process.

    A later position reads samples and drops them. An earlier position, or another epoch, begins the stream anew.
    """

    def __init__(
        self,
        name: str,
        iterable: Any,
        seed: int,
        *,
        samples: int | None = None,
        counted: int | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`name`: "training" or "test". `samples`: samples per epoch as the script gives it. `counted`: the number that
        another worker has counted. `say` gets a message before a pass over the stream counts the samples.

        Raises EngineError when the stream is an iterator that gives its samples only once. Raises what iterating
        raises.
        """
        self.name = name
        #: The data set of the script.
        self.iterable = iterable
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._iterator: Iterator[Any] | None = None
        #: The stream's own generators: those that it has at first, and those that the present pass has made.
        self._own, self._made = find({f"the {name} set": iterable}), Generators()
        #: States of the global generators inside the stream, and states of the stream's own generators.
        self._states: tuple[Any, ...] | None = None
        #: Epoch → positions whose samples are noted; these positions in the present epoch; their digests so far.
        self._places_of: Callable[[int], Collection[int]] = lambda _: ()
        self._places: Collection[int] = ()
        self._noted: dict[int, str] = {}
        #: Digest of the first sample of the present epoch.
        self._first = ""
        #: Where the number of samples per epoch comes from, for messages.
        self._source = "samples_per_epoch"
        if isinstance(iterable, GeneratorType) or (
            not isinstance(iterable, IterableDataset) and iter(iterable) is iterable
        ):
            raise EngineError(
                f"the {name} set is a {type(iterable).__name__}, which returns its samples only once: return an object "
                "whose __iter__ starts again each time, such as a torch.utils.data.IterableDataset"
            )
        length = None if samples is not None else _length(iterable)
        if samples is None and length is not None:
            self._source = "its __len__"
        elif samples is None:
            self._source = "the pass that counted the samples"
            if counted is None:
                option = "; set samples_per_epoch= in FabricModel or train() to skip this" * (name == "training")
                say(f"counting the samples of the {name} stream in one pass{option}")
        known = (samples, length, counted)
        self._samples = next((number for number in known if number is not None), None)
        if self._samples is None:
            self._samples = self._count(0 if name == "training" else -1)

    def __len__(self) -> int:
        assert self._samples is not None
        return self._samples

    def __getitem__(self, place: int) -> Any:
        """Return a sample of the first epoch."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self.take([(0, place)])[0]

    def note(self, places_of: Callable[[int], Collection[int]]) -> None:
        """Note the digests of the samples at these positions of each epoch when the stream gives them."""
        self._places_of = places_of

    def noted(self, epoch: int) -> dict[int, str]:
        """Return position → digest of the samples noted in an epoch; {} for an epoch that is not the present one."""
        return self._noted if epoch == self._epoch else {}

    def take(self, keys: Sequence[Key]) -> list[Any]:
        """Return the samples at these positions.

        Raises EngineError when the stream has more or fewer samples than expected. Raises what the stream raises.
        """
        with self._apart():
            try:
                return [self._at(epoch, place) for epoch, place in keys]
            except BaseException:
                self._iterator = None
                raise

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Within the context, put the generators into the stream's states. Afterwards restore the global ones."""
        with seeding.kept():
            if self._states is not None:
                globally, own = self._states
                seeding.restore(globally)
                restore(own)
            try:
                yield
            finally:
                self._states = seeding.capture(), [*self._own.states(), *self._made.states()]

    def _at(self, epoch: int, place: int) -> Any:
        if self._iterator is None or epoch != self._epoch or place < self._position:
            self._begin(epoch)
        assert self._iterator is not None
        while True:
            try:
                sample = next(self._iterator)
            except StopIteration:
                raise EngineError(
                    f"the {self.name} stream ended after {self._position} samples{_in(epoch)}; {self._source} says "
                    f"{len(self)}"
                ) from None
            if self._position == 0:
                self._made = find({f"the {self.name} set": self.iterable})
                self._first = digest(sample)
            if self._position in self._places:
                self._noted[self._position] = digest(sample)
            self._position += 1
            if self._position > place:
                break
        if self._position == len(self) and self._source != "samples_per_epoch":
            self._check_end(epoch)
        return sample

    def _begin(self, epoch: int) -> None:
        """Begin the stream for an epoch."""
        # The old iterator is dropped before the new one begins, because it may hold open files.
        self._iterator = None
        seed = stream_seed(self._seed, epoch)
        seed_everything(seed)
        self._own.seed(seed)
        self._made = Generators()
        if callable(getattr(self.iterable, "set_epoch", None)):
            # Validation always sets epoch 0, so that it is the same each time, even if the object is the training set.
            self.iterable.set_epoch(max(0, epoch))
        self._iterator = iter(self.iterable)
        self._epoch, self._position = epoch, 0
        self._places, self._noted = self._places_of(epoch), {}

    def _check_end(self, epoch: int) -> None:
        """Raise EngineError if the stream has more samples, or has changed at its end what it returns in a pass."""
        assert self._iterator is not None
        nothing, before = object(), _attributes(self.iterable)
        if next(self._iterator, nothing) is not nothing:
            option = f"; samples_per_epoch={len(self)} uses only the first samples"
            more = option if self.name == "training" else ""
            raise EngineError(
                f"the {self.name} stream returns more samples{_in(epoch)} than {self._source} says ({len(self)}){more}"
            )
        if _attributes(self.iterable) != before:
            noted = self._noted
            self._begin(epoch)
            if digest(next(self._iterator, None)) != self._first:
                raise EngineError(
                    f"the {self.name} stream begins with another sample when the same epoch begins again. {KEEPS_STATE}"
                )
            self._noted = noted
        self._iterator = None

    def _count(self, epoch: int) -> int:
        """Count the samples by one pass over the stream."""
        count, end = 0, time.monotonic() + COUNTING
        with self._apart():
            self._begin(epoch)
            assert self._iterator is not None
            for _ in self._iterator:
                count += 1
                if time.monotonic() > end:
                    self._iterator = None
                    option = "set samples_per_epoch= in FabricModel or train()" if self.name == "training" else (
                        "give the test set an end or a __len__"
                    )
                    raise EngineError(
                        f"the {self.name} stream has no length, and has not ended after {count} samples, which took "
                        f"{COUNTING:g} s: {option}"
                    )
            self._iterator = None
        return count


def _attributes(iterable: Any) -> list[tuple[str, Any]]:
    """Return the numbers and texts among the attributes of a stream."""
    found = getattr(iterable, "__dict__", {})
    return [(name, value) for name, value in found.items() if isinstance(value, int | float | str)]


def _in(epoch: int) -> str:
    return "" if epoch < 0 else f" in epoch {epoch}"


def is_stream(dataset: Any) -> bool:
    """Return whether the data set can only be iterated over."""
    if isinstance(dataset, DataLoader):
        return False
    # torch's base class of iterable data sets has a __getitem__ that raises.
    indexed = hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
    return hasattr(dataset, "__iter__") and not indexed


def _length(iterable: Any) -> int | None:
    """Return the length of an iterable, None if it has none."""
    try:
        return len(iterable)
    except (TypeError, RuntimeError, AttributeError):  # some raise a subclass of RuntimeError
        return None
