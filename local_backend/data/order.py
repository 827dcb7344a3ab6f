"""Files that the server and a fetcher exchange: the order, the progress and the outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlicmd.contract.data_sources import (
    CATALOG_NAME,
    COLLECTION,
    DATABASE_NAME,
    KEYSPACE,
    QUERY,
    SCHEMA_NAME,
    TABLE_NAME,
    TOPS,
)
from local_backend.data.locations import named
from local_backend.files import read_json, write_json

#: Final states of an outcome.
DELIVERED, FAILED = "delivered", "failed"

#: Longest label of a source, in characters: a source may have many paths.
_LONGEST_LABEL = 200


@dataclass(frozen=True)
class FetchItem:
    """One data source that must be fetched. An item has no secrets of its connection."""

    number: int
    name: str
    kind: str
    access: str
    location: dict[str, Any]
    #: Folder in which the program finds the data.
    folder: str
    #: Cache folder that the data passes through.
    cache: str

    @property
    def label(self) -> str:
        """Name for messages: `s3://bucket/x`; for servers without buckets `x (http)` and `public.t (mysql)`."""
        place = self.location
        bucket = next((str(place[key]) for key in TOPS if place.get(key)), "")
        paths = ", ".join(named(place))
        table = place.get(TABLE_NAME) or place.get(COLLECTION) or ("a query" if place.get(QUERY) else "")
        within = (place.get(key) for key in (DATABASE_NAME, KEYSPACE, CATALOG_NAME, SCHEMA_NAME))
        schema = "".join(f"{name}." for name in within if name) if table else ""
        if bucket:
            text = f"{self.kind}://{bucket}" + (f"/{paths}" if paths else "")
        else:
            text = f"{schema}{table or paths or self.name} ({self.kind})"
        return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


@dataclass(frozen=True)
class FetchOrder:
    """All data to fetch for an exec, and the files for lock, progress and outcome."""

    items: tuple[FetchItem, ...]
    #: File that the fetcher holds locked (flock) as long as it lives; contains its process id.
    lock: str
    progress: str
    outcome: str
    #: Seconds without a received byte after which the fetcher gives up.
    patience: float
    cache_bytes: int
    #: Whether the fetcher may connect to this machine: yes if the user of the machine is the submitter.
    loopback: bool
    #: Limits of a table, None for no limit: rows, and seconds until the last row has arrived.
    table_rows: int | None = None
    table_seconds: float | None = None
    #: Process id of the server with which the fetcher must end (--die-with-server); None if it outlives the server.
    server: int | None = None
    #: State of the connections when the order was written. Once their state differs, the order is obsolete.
    basis: list[Any] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the order to `path`. Raises OSError."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> FetchOrder:
        """Read an order from `path`. Raises OSError, ValueError, KeyError or TypeError when it has no usable order."""
        value = json.loads(path.read_bytes())
        return cls(**value | {"items": tuple(FetchItem(**item) for item in value["items"])})


@dataclass(frozen=True)
class FetchOutcome:
    """The result of an order. With an empty state: the part of the order that is done so far."""

    state: str
    message: str = ""
    #: Number of the source → what the program learns about it, in addition to the submission's own text.
    delivered: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Traceback of an internal error.
    trace: str = ""

    def write(self, path: Path) -> None:
        """Write the outcome to `path`. Raises OSError."""
        write_json(path, asdict(self))


def read_outcome(path: Path) -> FetchOutcome | None:
    """Return the outcome that a fetcher wrote; None if it is missing or malformed. Raises OSError."""
    match read_json(path):
        case {"state": str(state), "message": str(message), "delivered": dict(delivered), "trace": str(trace)}:
            if all(number.isdecimal() and isinstance(value, Mapping) for number, value in delivered.items()):
                return FetchOutcome(state, message, {int(number): value for number, value in delivered.items()}, trace)
    return None


def read_progress(path: Path) -> str | None:
    """Return the progress text that a fetcher wrote; None if it cannot be read."""
    try:
        found = read_json(path)
    except OSError:
        return None
    return found if isinstance(found, str) else None
