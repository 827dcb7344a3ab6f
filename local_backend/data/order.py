"""What the server and a fetcher tell each other, through files: the order, and how it came out."""

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
from local_backend.data.listing import named
from local_backend.files import read_json, write_json

#: How it came out.
DELIVERED, FAILED = "delivered", "failed"

#: Characters of what a source is called, where it has many paths.
_LONGEST_LABEL = 200


@dataclass(frozen=True)
class Item:
    """One data source that has to come from elsewhere. What is secret about its connection is not in here."""

    number: int
    name: str
    kind: str
    access: str
    location: dict[str, Any]
    #: Where the program finds it.
    folder: str
    #: Folder of the cache that it comes through.
    cache: str

    @property
    def label(self) -> str:
        """As people are told of it: `s3://bucket/x`; of servers without buckets, `x (http)` and `public.t (mysql)`."""
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
class Order:
    """All that is to be fetched for an exec, and where news of it are written."""

    items: tuple[Item, ...]
    #: Held with flock by the fetcher for as long as it lives; its process id is in it.
    lock: str
    progress: str
    outcome: str
    #: Seconds without a byte after which it gives up.
    patience: float
    cache_bytes: int
    #: Whether it may connect to this machine: its user is the submitter.
    loopback: bool
    #: What a table may have, None for no limit: rows, and seconds until the last one is here.
    table_rows: int | None = None
    table_seconds: float | None = None
    #: Process id of the server with which it is to end (--die-with-server); None when it goes on without.
    server: int | None = None
    #: What the connections were when this was written: once they are something else, it is worth nothing.
    basis: list[Any] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Raises OSError."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Order:
        """Raises OSError, ValueError, KeyError or TypeError when there is no usable one."""
        value = json.loads(path.read_bytes())
        return cls(**value | {"items": tuple(Item(**item) for item in value["items"])})


@dataclass(frozen=True)
class Outcome:
    """How an order came out, or, with an empty state, what of it is done so far."""

    state: str
    message: str = ""
    #: Number of the source → what the program is told of it, beside what the submission says.
    delivered: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Of a fault of ours: the traceback.
    trace: str = ""

    def write(self, path: Path) -> None:
        """Raises OSError."""
        write_json(path, asdict(self))


def read_outcome(path: Path) -> Outcome | None:
    """What a fetcher has written; None when it has not, or not in order. Raises OSError."""
    match read_json(path):
        case {"state": str(state), "message": str(message), "delivered": dict(delivered), "trace": str(trace)}:
            if all(number.isdecimal() and isinstance(value, Mapping) for number, value in delivered.items()):
                return Outcome(state, message, {int(number): value for number, value in delivered.items()}, trace)
    return None


def read_progress(path: Path) -> str | None:
    """What a fetcher says about how far it is; None when nothing can be read."""
    try:
        found = read_json(path)
    except OSError:
        return None
    return found if isinstance(found, str) else None
