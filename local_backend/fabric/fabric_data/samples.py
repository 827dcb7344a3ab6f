"""What all data sets have in common: how a sample is asked for."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, SupportsIndex

from torch.utils.data import Dataset


class Samples(Dataset[Any]):
    """A data set of so many samples. They are asked for as the elements of a list are, one at a time."""

    #: What a sample is called, and all of them.
    sample: ClassVar[str]
    whole: ClassVar[str]

    def __init__(self, transform: Callable[[Any], Any] | None) -> None:
        self._transform = transform

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _sample(self, number: int) -> Any:
        """The sample of that number, which is from 0 up to the length, as it is on the disk."""

    def __getitem__(self, index: SupportsIndex) -> Any:
        try:
            asked = operator.index(index)
        except TypeError:
            raise TypeError(f"{self.sample}s are asked for by a whole number, one at a time, not by {index!r:.80}; "
                            "for some of them there is torch.utils.data.Subset(data, [0, 2])") from None
        length = len(self)
        if not -length <= asked < length:
            raise IndexError(f"there is no {self.sample} {asked}: {self.whole} {length}")
        found = self._sample(asked % length)
        return found if self._transform is None else self._transform(found)
