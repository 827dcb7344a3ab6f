"""Automatic snapshots: the state of a training is written to disk at intervals, so that it outlives all workers.

A snapshot file is `[magic][length of head][head][meta][bytes of all tensors][CRC-32 of all that]`. The head is JSON:
position (`version`), extra values, dtype and shape of each tensor. A file does not depend on which workers exist. One
worker writes the files, in the background. `meta` is unpickled when it is used (see replica.py), so the folder must be
the user's own.
"""

from __future__ import annotations

import json
import os
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

from local_backend.elastic.errors import EngineError
from local_backend.elastic.position import Position
from local_backend.elastic.state import disk
from local_backend.elastic.state.artifacts import write_whole
from local_backend.elastic.state.replica import Replica, ReplicaState
from local_backend.elastic.state.transfer import as_bytes

MAGIC = b"elastic snapshot 1\n"
SUFFIX = ".snapshot"
#: Number of snapshots that `prune` keeps: the newest, and the one before it in case the newest is damaged.
KEPT = 2
#: Least seconds between two snapshots. The time is also at least `PATIENCE` times the pause of training for a snapshot.
LEAST_SECONDS = 10.0
PATIENCE = 100.0
#: The first snapshot of a worker is due after this part of the least time, and each further wait is twice as long.
_EARLY = 8

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_BLOCK = 8 << 20


def write_snapshot(path: Path, position: Position, state: ReplicaState, extra: Mapping[str, Any]) -> None:
    """Write a state whose tensors are on the CPU to one file, completely or not at all. Raises OSError."""
    write_whole(path, lambda file: _write(file, position, state, dict(extra)), "checkpoint-rename")


def open_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises ValueError for a file that is not a complete snapshot, and OSError."""
    with open(path, "rb") as file:
        head = _check(file)
    return Snapshot(path, Position.from_number(head["version"]), head["extra"])


@dataclass(frozen=True)
class Snapshot:
    """A complete snapshot on disk."""

    path: Path
    position: Position
    extra: dict[str, Any]

    def load(self) -> ReplicaState:
        """Return the state, on the CPU. Raises EngineError when the file is missing or damaged."""
        try:
            with open(self.path, "rb") as file:
                head, state = _read(file)
            if head["version"] != self.position.number:
                raise ValueError("it belongs to another position of the training")
            return state
        except (OSError, ValueError) as error:
            raise EngineError(f"the snapshot {self.path} cannot be read: {error}") from error


class SnapshotFolder:
    """The snapshots of one training."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def newest(self, most: Position | None = None) -> Snapshot | None:
        """Return the newest complete snapshot of a position up to `most`; None without any. Skip damaged ones."""
        for path in self._files():
            try:
                with open(path, "rb") as file:
                    head = _check(file)
            except (OSError, ValueError):
                continue
            if most is None or head["version"] <= most.number:
                return Snapshot(path, Position.from_number(head["version"]), head["extra"])
        return None

    def write(self, position: Position, state: ReplicaState, extra: Mapping[str, Any] | None = None) -> Path:
        """Write a state whose tensors are on the CPU, completely or not at all. `extra`: JSON. Raises OSError."""
        path = self.path_of(position)
        for torn in self.path.glob(f".*{SUFFIX}.*.tmp"):  # left by a writer that was killed
            torn.unlink(missing_ok=True)
        write_whole(path, lambda file: _write(file, position, state, dict(extra or {})), "snapshot-rename")
        return path

    def prune(self, position: Position) -> None:
        """Of the snapshots up to a position, keep only the newest two.

        Only the driver calls this, with the position that it would continue from: a writer may be killed before the
        driver knows its file.
        """
        for old in [path for path in self._files() if path <= self.path_of(position)][KEPT:]:
            old.unlink(missing_ok=True)

    def drop_after(self, position: Position) -> None:
        """Remove the snapshots of later positions."""
        for path in self._files():
            if path > self.path_of(position):
                path.unlink(missing_ok=True)

    def path_of(self, position: Position) -> Path:
        """Return the path of the snapshot of a position."""
        return self.path / f"{position.number:012}{SUFFIX}"

    def _files(self) -> list[Path]:
        """Return the snapshot files, newest first."""
        try:
            return sorted(self.path.glob(f"[0-9]*{SUFFIX}"), reverse=True)
        except OSError:
            return []


class Snapshotter:
    """Takes snapshots in the worker that writes them.

    Training stands still only while the state is cloned; the rest runs in the background. Only one snapshot is written
    at a time. The time between snapshots is so long that they cost little.
    """

    def __init__(
        self,
        folder: SnapshotFolder,
        on_written: Callable[[Position, Path, float], None],
        on_failure: Callable[[str], None],
        least_seconds: float = LEAST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_written(position, path, seconds that writing took)` and `on_failure(sentence)` are called in the
        background thread. The first snapshots are due after 1/8, 1/4 and 1/2 of `least_seconds`, so that a worker
        that starts again and again leaves some progress."""
        self._folder = folder
        self._on_written = on_written
        self._on_failure = on_failure
        self._least = least_seconds
        self._wait = least_seconds / _EARLY
        self._clock = clock
        self._next = clock() + self._wait
        self._writer: threading.Thread | None = None
        self._closed = False
        #: Seconds that the last clone took.
        self.pause = 0.0

    def due(self, now: float) -> bool:
        """Return whether it is time to take a snapshot. `now`: time of the clock (`time.monotonic`)."""
        busy = self._writer is not None and self._writer.is_alive()
        return now >= self._next and not busy and not self._closed

    def take(self, position: Position, state: ReplicaState, extra: Mapping[str, Any] | None = None) -> None:
        """Clone the state, and write the clone in the background. Wait first until an earlier snapshot is written."""
        if self._writer is not None:
            self._writer.join()
        begun = self._clock()
        clone = Replica.copy(state)
        ended = self._clock()
        self.pause = ended - begun
        self._wait = min(self._least, 2 * self._wait)
        self._next = ended + max(self._wait, PATIENCE * self.pause)
        self._writer = threading.Thread(
            target=self._write, args=(position, clone, dict(extra or {})), name="snapshot", daemon=True
        )
        self._writer.start()

    def close(self, wait: bool) -> None:
        """Take no more snapshots. `wait`: wait for the one that is being written; otherwise it may end unfinished."""
        self._closed = True
        if wait and self._writer is not None:
            self._writer.join()

    def _write(self, position: Position, clone: ReplicaState, extra: dict[str, Any]) -> None:
        begun = self._clock()
        try:
            path = self._folder.write(position, clone, extra)
        except Exception as error:
            if self._closed:
                return  # the folder may be deleted by now
            why = str(error)
            if isinstance(error, OSError):
                why = disk.why(error, self._folder.path, disk.size_of(clone.tensors))
            self._on_failure(
                f"cannot write a snapshot to {self._folder.path}: {why}; training continues and tries again later"
            )
        else:
            self._on_written(position, path, self._clock() - begun)


class _Summing:
    """Computes the CRC of all data that is written or read through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc = 0

    def write(self, data: Any) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self._file.write(data)

    def fill(self, data: Any) -> None:
        """Fill `data` from the file. Raises ValueError when the file ends too early."""
        if self._file.readinto(data) != len(data):  # type: ignore[attr-defined]
            raise ValueError("it is truncated")
        self.crc = zlib.crc32(data, self.crc)

    def read(self, length: int) -> bytes:
        data = bytearray(length)
        self.fill(data)
        return bytes(data)


def _write(file: BinaryIO, position: Position, state: ReplicaState, extra: dict[str, Any]) -> None:
    head = {
        "version": position.number,
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
    """Read the head. Raises ValueError for another kind of file, or one that is damaged or too short."""
    if summing.read(len(MAGIC)) != MAGIC:
        raise ValueError("it is not a snapshot of this version")
    (length,) = _LENGTH.unpack(summing.read(_LENGTH.size))
    if length > size:
        raise ValueError("it is damaged")
    head: dict[str, Any] = json.loads(summing.read(length))
    return head


def _check(file: BinaryIO) -> dict[str, Any]:
    """Check a complete file and return its head. Raises ValueError for any other file, and OSError."""
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


def _read(file: BinaryIO) -> tuple[dict[str, Any], ReplicaState]:
    """Return (head, state) of a complete file. Raises ValueError for any other file, and OSError."""
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
    return head, ReplicaState(meta, tensors)
