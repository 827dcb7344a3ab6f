"""The base of all data sets: how a sample is read by its index."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, SupportsIndex

from torch.utils.data import Dataset


class Samples(Dataset[Any]):
    """A data set with a length. Samples are read like the elements of a list, one at a time."""

    #: Words for messages: the name of a sample, and the words before the number of all samples.
    sample: ClassVar[str]
    whole: ClassVar[str]

    def __init__(self, transform: Callable[[Any], Any] | None) -> None:
        self._transform = transform

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _sample(self, number: int) -> Any:
        """Return the sample with this number, from 0 up to the length, as it is on disk."""

    def __getitem__(self, index: SupportsIndex) -> Any:
        try:
            asked = operator.index(index)
        except TypeError:
            raise TypeError(f"the index of one {self.sample} must be a whole number, not {index!r:.80}; to select "
                            f"several {self.sample}s, use torch.utils.data.Subset(data, [0, 2])") from None
        length = len(self)
        if not -length <= asked < length:
            raise IndexError(f"there is no {self.sample} {asked}: {self.whole} {length}")
        found = self._sample(asked % length)
        return found if self._transform is None else self._transform(found)
