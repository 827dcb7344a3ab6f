"""What is wrong with data that a submission names."""

from __future__ import annotations


class DataError(ValueError):
    """The data of a job cannot be used; the text says which and why. Trying again does not help."""


class DataUnavailable(DataError):
    """The data cannot be had at this moment: the server that has it is down, or the connection broke. It may pass."""


class DataChanged(DataUnavailable):
    """A file is another by now than when it was listed; nothing that was read of it before is of use."""
