"""Automatic snapshots: the state of a training on disk, every now and then, so that it outlives all of its workers.

A snapshot file is `[magic][length of head][head][meta][bytes of all tensors][CRC-32 of all that]`; the head is JSON:
version, extra values, type and shape of each tensor. Nothing in it depends on who the workers are. One worker writes
them, in the background. The `meta` is unpickled when it is used (see replica.py): the folder must be the user's own.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from local_backend.elastic.artifacts import write_whole
from local_backend.elastic.errors import EngineError
from local_backend.elastic.replica import Replica, State
from local_backend.elastic.transfer import as_bytes

MAGIC = b"elastic snapshot 1\n"
SUFFIX = ".snapshot"
#: Snapshots that are kept: the newest, and the one before it in case that one turns out damaged.
KEPT = 2
#: Seconds between two snapshots are at least this, and at least `PATIENCE` times as long as training stood still.
LEAST_SECONDS = 10.0
PATIENCE = 100.0

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_BLOCK = 8 << 20


def write_snapshot(path: Path, version: int, state: State, extra: Mapping[str, Any]) -> None:
    """Write a state whose tensors are on the CPU to one file, whole or not at all. Raises OSError."""
    write_whole(path, lambda file: _write(file, version, state, dict(extra)), "checkpoint-rename")


def open_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file that is whole. Raises ValueError for any other file, and OSError."""
    with open(path, "rb") as file:
        head = _check(file)
    return Snapshot(path, head["version"], head["extra"])


@dataclass(frozen=True)
class Snapshot:
    """A whole snapshot on disk."""

    path: Path
    version: int
    extra: dict[str, Any]

    def load(self) -> State:
        """Its state, on the CPU. Raises EngineError when the file is gone or damaged."""
        try:
            with open(self.path, "rb") as file:
                head, state = _read(file)
            if head["version"] != self.version:
                raise ValueError("it is of another version of the training")
            return state
        except (OSError, ValueError) as error:
            raise EngineError(f"the snapshot {self.path} cannot be read: {error}") from error


class SnapshotFolder:
    """The snapshots of one training."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def newest(self, most: int | None = None) -> Snapshot | None:
        """The newest that is whole, of at most that version; damaged ones are passed over."""
        for path in self._files():
            try:
                with open(path, "rb") as file:
                    head = _check(file)
            except (OSError, ValueError):
                continue
            if most is None or head["version"] <= most:
                return Snapshot(path, head["version"], head["extra"])
        return None

    def write(self, version: int, state: State, extra: Mapping[str, Any] | None = None) -> Path:
        """Write a state whose tensors are on the CPU, whole or not at all; keeps the newest two files.

        `version`: not negative, grows. `extra`: JSON. Raises OSError.
        """
        path = self.path_of(version)
        for torn in self.path.glob(f".*{SUFFIX}.*.tmp"):  # of a writer that was killed
            torn.unlink(missing_ok=True)
        write_whole(path, lambda file: _write(file, version, state, dict(extra or {})), "snapshot-rename")
        for old in self._files()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def path_of(self, version: int) -> Path:
        """Return where the snapshot of a version lies."""
        return self.path / f"{version:012}{SUFFIX}"

    def remove(self) -> None:
        """Delete them all, and the folder around when nothing else is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            self.path.parent.rmdir()
        except OSError:
            pass

    def _files(self) -> list[Path]:
        """Newest first."""
        try:
            return sorted(self.path.glob(f"[0-9]*{SUFFIX}"), reverse=True)
        except OSError:
            return []


class Snapshotter:
    """Takes snapshots in the worker that writes them: training stands still while the state is cloned, the rest is done
    in the background. One at a time, and so seldom that they cost little."""

    def __init__(
        self,
        folder: SnapshotFolder,
        on_written: Callable[[int, Path, float], None],
        on_failure: Callable[[str], None],
        least_seconds: float = LEAST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_written(version, path, seconds that writing took)` and `on_failure(sentence)` are called in the
        background. The first snapshot is due after `least_seconds`."""
        self._folder = folder
        self._on_written = on_written
        self._on_failure = on_failure
        self._least = least_seconds
        self._clock = clock
        self._next = clock() + least_seconds
        self._writer: threading.Thread | None = None
        self._closed = False
        #: Seconds that the last clone took.
        self.pause = 0.0

    def due(self, now: float) -> bool:
        """Whether a snapshot is to be taken; `now` is of the clock (`time.monotonic`)."""
        busy = self._writer is not None and self._writer.is_alive()
        return now >= self._next and not busy and not self._closed

    def take(self, version: int, state: State, extra: Mapping[str, Any] | None = None) -> None:
        """Clone the state, and write the clone in the background. Waits for one that is being written."""
        if self._writer is not None:
            self._writer.join()
        begun = self._clock()
        clone = Replica.copy(state)
        ended = self._clock()
        self.pause = ended - begun
        self._next = ended + max(self._least, PATIENCE * self.pause)
        self._writer = threading.Thread(
            target=self._write, args=(version, clone, dict(extra or {})), name="snapshot", daemon=True
        )
        self._writer.start()

    def close(self, wait: bool) -> None:
        """No more; `wait` for the one that is being written, else leave it to the end of the process."""
        self._closed = True
        if wait and self._writer is not None:
            self._writer.join()

    def _write(self, version: int, clone: State, extra: dict[str, Any]) -> None:
        begun = self._clock()
        try:
            path = self._folder.write(version, clone, extra)
        except Exception as error:
            if self._closed:
                return  # the folder may be gone by now
            self._on_failure(
                f"no snapshot could be written to {self._folder.path}: {error}; training goes on and tries again later"
            )
        else:
            self._on_written(version, path, self._clock() - begun)


class _Summing:
    """Keeps the CRC of what goes through."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc = 0

    def write(self, data: Any) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self._file.write(data)

    def fill(self, data: Any) -> None:
        """Read exactly as much. Raises ValueError where the file ends before."""
        if self._file.readinto(data) != len(data):  # type: ignore[attr-defined]
            raise ValueError("it ends too early")
        self.crc = zlib.crc32(data, self.crc)

    def read(self, length: int) -> bytes:
        data = bytearray(length)
        self.fill(data)
        return bytes(data)


def _write(file: BinaryIO, version: int, state: State, extra: dict[str, Any]) -> None:
    head = {
        "version": version,
        "extra": extra,
        "meta": len(state.meta),
        "tensors": [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in state.tensors],
    }
    text = json.dumps(head).encode()
    summing = _Summing(file)
    for data in (MAGIC, _LENGTH.pack(len(text)), text, state.meta):
        summing.write(data)
    for tensor in state.tensors:
        summing.write(_memory(tensor))
    file.write(_CRC.pack(summing.crc))


def _memory(tensor: Tensor) -> memoryview:
    return as_bytes(tensor).numpy().data


def _head(summing: _Summing, size: int) -> dict[str, Any]:
    """Raises ValueError."""
    if summing.read(len(MAGIC)) != MAGIC:
        raise ValueError("it is no snapshot of this version")
    (length,) = _LENGTH.unpack(summing.read(_LENGTH.size))
    if length > size:
        raise ValueError("it is damaged")
    head: dict[str, Any] = json.loads(summing.read(length))
    return head


def _check(file: BinaryIO) -> dict[str, Any]:
    """The head of a whole file. Raises ValueError for any other, and OSError."""
    size = os.fstat(file.fileno()).st_size
    summing = _Summing(file)
    head = _head(summing, size)
    left = size - file.tell() - _CRC.size
    block = memoryview(bytearray(_BLOCK))
    while left > 0:
        summing.fill(block[:left])
        left -= min(left, _BLOCK)
    if left < 0 or file.read() != _CRC.pack(summing.crc):
        raise ValueError("it is damaged")
    return head


def _read(file: BinaryIO) -> tuple[dict[str, Any], State]:
    """(head, state) of a whole file. Raises ValueError for any other, and OSError."""
    _check(file)
    file.seek(0)
    summing = _Summing(file)
    head = _head(summing, os.fstat(file.fileno()).st_size)
    meta = summing.read(head["meta"])
    tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in head["tensors"]]
    for tensor in tensors:
        summing.fill(_memory(tensor))
    if file.read() != _CRC.pack(summing.crc):
        raise ValueError("it is damaged")
    return head, State(meta, tensors)
