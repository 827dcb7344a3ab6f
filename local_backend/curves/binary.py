"""Readers of binary files: event files of TensorBoard, and files of wandb (offline).

Both contain messages of Protocol Buffers. Only the fields of scalars are read. Messages of more than LONGEST bytes,
such as pictures, are skipped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

from local_backend.curves.model import STEP, TENSORBOARD, WANDB, MetricValue, number
from local_backend.curves.records import LONGEST

#: Maximum values of one message.
_MOST = 500
_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
#: Layouts of the scalar types of TensorFlow by their number: half, float, double, integers.
_FORMATS = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e", 4: "<B", 6: "<b", 5: "<h", 22: "<I", 23: "<Q"}
#: Blocks of a log of LevelDB, the header of a record, and the header of the file.
_BLOCK, _RECORD, _FILE = 32768, 7, 7
_WANDB = b":W&B"


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: an integer for a varint, else its bytes. Raises ValueError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {_LONG: 8, _SHORT: 4}.get(kind)
        if size is None:
            if kind != _BYTES:
                raise ValueError(f"unknown type {kind} of a field")
            size, at = _varint(message, at)
        if at + size > len(message):
            raise ValueError("a field is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is too long")


def signed(value: int) -> int:
    """Return a varint as a signed number."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


#: What the logger of Lightning writes in place of a metric, so that TensorBoard shows the parameters of the run.
_NO_METRIC = ("hp_metric", -1.0)


class EventsReader:
    """Reads the scalars of an event file of TensorBoard."""

    source = TENSORBOARD

    def __init__(self, prefix: str = "") -> None:
        """`prefix` distinguishes the runs of several folders; it comes before the names."""
        self._prefix = prefix

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        at, found = 0, list[MetricValue]()
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            end = at + 12 + size + 4
            if size > 1 << 40:
                raise ValueError("not an event file")
            if size > LONGEST:
                return end, found
            if end > len(data):
                break
            found += self._event(data[at + 12 : end - 4])
            at = end
        return at, found

    def _event(self, message: bytes) -> list[MetricValue]:
        """Return the scalars of an Event: wall_time = 1, step = 2, summary = 5."""
        at, step, summaries = None, 0, list[bytes]()
        for field, value in fields(message):
            match field, value:
                case 1, bytes() if len(value) == 8:
                    (at,) = struct.unpack("<d", value)
                case 2, int():
                    step = signed(value)
                case 5, bytes():
                    summaries.append(value)
        named = [one for summary in summaries for field, value in fields(summary)
                 if field == 1 and isinstance(value, bytes) and (one := _scalar(value)) is not None]
        return [MetricValue(self._prefix + name, amount, float(step), STEP, at) for name, amount in named[:_MOST]]


def _scalar(message: bytes) -> tuple[str, float] | None:
    """Return name and number of a Summary.Value: tag = 1, simple_value = 2, tensor = 8; None if it is not a scalar."""
    name, amount = "", None
    for field, value in fields(message):
        match field, value:
            case 1, bytes():
                name = value[:1000].decode(errors="replace")
            case 2, bytes() if len(value) == 4:
                (amount,) = struct.unpack("<f", value)
            case 8, bytes():
                amount = _tensor(value)
    return None if amount is None or (name, amount) == _NO_METRIC else (name, amount)


def _tensor(message: bytes) -> float | None:
    """Return the number of a TensorProto with one element: dtype = 1, tensor_content = 4, float_val = 5,
    double_val = 6, int_val = 7, int64_val = 10."""
    kind, content, single = 0, b"", None
    for field, value in fields(message):
        match field, value:
            case 1, int():
                kind = value
            case 4, bytes():
                content = value
            case 5, bytes() if len(value) == 4:
                (single,) = struct.unpack("<f", value)
            case 6, bytes() if len(value) == 8:
                (single,) = struct.unpack("<d", value)
            case (7 | 10), int():
                single = float(signed(value))
            case (7 | 10), bytes() if 0 < len(value) <= 10:
                single = float(signed(_varint(value, 0)[0]))
    layout = _FORMATS.get(kind)
    if single is None and layout is not None and len(content) == struct.calcsize(layout):
        (single,) = struct.unpack(layout, content)
    return None if single is None else float(single)


class WandbReader:
    """Reads the history of a run that wandb has stored offline: records in a log of LevelDB."""

    source = WANDB

    def __init__(self) -> None:
        self._offset = 0
        #: The parts of a record that has begun; None if the record is too long.
        self._parts: list[bytes] | None = []

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricValue]]:
        """See Reader."""
        at, found = 0, list[MetricValue]()
        if self._offset == 0:
            if len(data) < _FILE:
                return 0, []
            if not data.startswith(_WANDB):
                raise ValueError("not a file of wandb")
            at = _FILE
        while True:
            left = _BLOCK - (self._offset + at) % _BLOCK
            if left < _RECORD:
                at += left
                continue
            if at + _RECORD > len(data):
                break
            _, size, kind = struct.unpack_from("<IHB", data, at)
            end = at + _RECORD + size
            if _RECORD + size > left or not (1 <= kind <= 4 or kind == size == 0):
                raise ValueError("damaged record")
            if end > len(data):
                break
            if kind:
                found += self._part(kind, data[at + _RECORD : end])
            at = end
        at = min(at, len(data))
        self._offset += at
        return at, found

    def _part(self, kind: int, data: bytes) -> list[MetricValue]:
        """Take a part of a record: 1 whole, 2 first, 3 middle, 4 last. Return the values of a complete record."""
        if kind in (1, 2):
            self._parts = []
        if self._parts is not None:
            self._parts.append(data)
            if sum(map(len, self._parts)) > LONGEST:
                self._parts = None
        if kind in (2, 3) or self._parts is None:
            return []
        return list(_history(b"".join(self._parts)))[:_MOST]


def _history(message: bytes) -> Iterator[MetricValue]:
    """Yield the numbers of a Record: history = 2, in it item = 1 and step = 2."""
    for field, record in fields(message):
        if field != 2 or not isinstance(record, bytes):
            continue
        step, items = 0.0, dict[str, float]()
        for inner, value in fields(record):
            if inner == 1 and isinstance(value, bytes):
                name, amount = _item(value)
                if amount is not None:
                    items[name] = amount
            elif inner == 2 and isinstance(value, bytes):
                numbers = [signed(one) for key, one in fields(value) if key == 1 and isinstance(one, int)]
                step = float(numbers[0]) if numbers else 0.0
        step = items.get("_step", step)
        for name, amount in items.items():
            if not name.startswith("_"):
                yield MetricValue(name, amount, step, STEP, items.get("_timestamp"))


def _item(message: bytes) -> tuple[str, float | None]:
    """Return name and number of a HistoryItem: key = 1, nested_key = 2, value_json = 16."""
    names: list[str] = []
    amount = None
    for field, value in fields(message):
        if isinstance(value, bytes) and field in (1, 2) and len(names) < 10:
            names.append(value[:1000].decode(errors="replace"))
        elif isinstance(value, bytes) and field == 16 and len(value) < 60:
            try:
                found = json.loads(value)
            except ValueError:
                continue
            amount = None if isinstance(found, str) else number(found)
    return ".".join(filter(None, names)), amount
