"""Errors about the data that a submission names."""

from __future__ import annotations


class DataError(ValueError):
    """The data of a job cannot be used. The text says which data and why. A retry does not help."""


class DataUnavailable(DataError):
    """The data is not available now: its server is down, or the connection broke. A retry may help."""


class DataChanged(DataUnavailable):
    """A file changed after it was listed. Bytes that were read before the change are useless."""
