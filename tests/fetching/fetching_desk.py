"""Shared parts of the download tests: a meter that counts, content to serve, and a function for one download."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_backend.data import registry
from local_backend.data.cache import Cache
from local_backend.data.download import download
from local_backend.data.progress import Cancelled, Delivered


@dataclass
class Count:
    """A meter that records its calls, and raises Cancelled once `cancelled` is set."""

    expected: tuple[int | None, int | None] = (None, None)
    bytes: int = 0
    files: int = 0
    said: list[str] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, size: int | None, files: int | None = None) -> None:
        self.expected = size, files
        self.bytes = self.files = 0

    def advance(self, size: int, files: int = 0) -> None:
        with self.lock:
            self.bytes += size
            self.files += files

    def resume(self, size: int, files: int = 0) -> None:
        self.advance(size, files)

    def say(self, text: str) -> None:
        self.said.append(text)

    def check(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled


def content(size: int, seed: int = 1) -> bytes:
    """Return random bytes, which equal no shifted copy of themselves."""
    return random.Random(seed).randbytes(size)


@dataclass
class Desk:
    """A cache and the data folders of jobs."""

    folder: Path
    limit: int = 1 << 40

    @property
    def cache(self) -> Cache:
        return Cache(self.folder / "cache", self.limit)

    def job(self, number: int) -> Path:
        """Return the folder with the data of a job."""
        return self.folder / f"job-{number}"

    def get(self, kind: str, values: Mapping[str, str], location: Mapping[str, Any], job: int = 1,
            meter: Count | None = None) -> Delivered:
        """Deliver data to the folder of a job, once."""
        family = registry.find(kind).open(values, loopback=True)
        try:
            return download(family, location, self.job(job), self.cache, meter or Count())  # type: ignore[arg-type]
        finally:
            family.close()

    def read(self, job: int = 1) -> dict[str, bytes]:
        """Return the files that the program of a job sees."""
        top = self.job(job)
        return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}

    def kept(self) -> list[str]:
        """Return the names of the cache entries."""
        return sorted(path.name for path in (self.folder / "cache").iterdir() if path.is_dir())
