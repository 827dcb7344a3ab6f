"""What a kind of connection is: its name, what must be known of a server, and a family that talks to such servers."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dlicmd.contract import data_sources as wire
from dlicmd.contract.strict_json import is_unicode
from local_backend import network
from local_backend.data import addresses
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.hidden import secrets_of, without
from local_backend.data.listing import outside, paths_of, plain
from local_backend.data.wanted import check_query, database, wanted

if TYPE_CHECKING:
    import pyarrow

#: Characters of what a library says that are shown.
LONGEST_TEXT = 400
#: What is said to who would have a program read a table by itself.
NO_STREAM = "a table cannot be streamed; leave 'access' out, and it comes as Parquet files"


@dataclass(frozen=True)
class Field:
    """A value of a connection. Other spellings of its name that clients use are `aliases`."""

    name: str
    help: str
    required: bool = False
    secret: bool = False
    aliases: tuple[str, ...] = ()
    #: Of an address: what it may begin with, and whether a host alone is one, too.
    schemes: tuple[str, ...] = ()
    bare: bool = False
    #: Whether it is the host, without anything else; and whether it may be the folder of a socket in its place.
    host: bool = False
    socket: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of connection. A module of this folder has its kinds in `KINDS`."""

    #: What stands as `type` of a connection.
    name: str
    #: What people call it.
    title: str
    family: type[Family]
    fields: tuple[Field, ...] = ()
    #: Other names: those of consoles and earlier products.
    aliases: tuple[str, ...] = ()
    #: Extra of this package that brings the libraries, and modules that are there when it is installed.
    extra: str = ""
    modules: tuple[str, ...] = ()
    #: Constants for the family: the dialect, the port, the protocol.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Which real server the tests use, for the documentation; empty when there is none.
    tested: str = ""

    def cached(self, access: str) -> bool:
        """Whether what comes from such a server lies in a cache."""
        return access == wire.DOWNLOAD and issubclass(self.family, FileFamily)

    def require(self) -> None:
        """Raises DataError when its libraries are not installed, and says how they are."""
        if not all(_is_there(name) for name in self.modules):
            raise DataError(f"{self.title} needs libraries that are not installed on the server: "
                            f"pip install 'dlicmd[{self.extra}]'")

    def open(self, values: Mapping[str, str], loopback: bool = False) -> Family:
        """A family that talks to the server of a connection with these values. Nothing is connected to yet; `loopback`
        says whether it may be this machine: its user is the submitter.

        Raises DataError: a library or a value is missing, or there is a value that it does not know.
        """
        family = self.family(self, self.check(values))
        family.loopback = loopback
        return family

    def check(self, values: Mapping[str, str]) -> dict[str, str]:
        """The values by the names of the fields, with nothing opened or imported. Raises DataError as `open` does."""
        self.require()
        return self._complete(values)

    def database(self, location: Mapping[str, Any]) -> dict[str, str]:
        """The database that a location names, as a value that takes the place of the connection's; nothing where it
        names none. Raises DataError."""
        name = database(location, self.family.databases)
        return {item.name: name for item in self.fields if name and "database" in (item.name, *item.aliases)}

    def _complete(self, values: Mapping[str, str]) -> dict[str, str]:
        known = {alias: item.name for item in self.fields for alias in (item.name, *item.aliases)}
        unknown = [name for name in values if name not in known]
        if unknown:
            raise DataError(f"a connection of type '{self.name}' has no '{unknown[0]}'; it has "
                            + ", ".join(item.name for item in self.fields))
        given: dict[str, str] = {}
        for name, value in values.items():
            first = given.setdefault(known[name], name)
            if values[first] != value:
                raise DataError(f"the connection has '{first}' and '{name}', which are two names of one value, and "
                                "differ; give one of them")
        found = {known[name]: value for name, value in values.items()}
        missing = [item.name for item in self.fields if item.required and not found.get(item.name)]
        if missing:
            raise DataError(f"a connection of type '{self.name}' needs '{missing[0]}'")
        for item in self.fields:
            address = found.get(item.name, "")
            if not is_unicode(address):
                raise DataError(f"'{item.name}' of the connection is no text in UTF-8")
            if address and not item.secret:
                addresses.check(item, address, {one.name for one in self.fields})
            if address and item.name == "port" and not (address.isascii() and address.isdecimal()
                                                        and 0 < int(address[:9]) < 65536):
                raise DataError("'port' of the connection is no number from 1 to 65535")
        return found


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # There is no package that it could be in.
        return False


class Family(ABC):
    """Talks to the servers of some kinds. Its methods raise DataError, and DataUnavailable for what may pass."""

    #: Keys of a location that say what of such a server is meant; those of them that name its database, in the place of
    #: the one that its connection names; and further ones that name what paths are below.
    keys: ClassVar[tuple[str, ...]] = ()
    databases: ClassVar[tuple[str, ...]] = ()
    tops: ClassVar[tuple[str, ...]] = ()
    #: Whether it may connect to this machine.
    loopback = False

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        self.kind, self.values = kind, values

    @abstractmethod
    def test(self) -> None:
        """Connect, and see that the credentials are good."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of the server."""

    def check(self, location: Mapping[str, Any]) -> None:
        """Raises DataError for a location that names nothing which such a server could have, as far as that can be told
        without asking it."""
        self.check_keys(location)

    def check_keys(self, location: Mapping[str, Any]) -> None:
        """Raises DataError for a key that means nothing to such a server: what else it names would be read in its
        place."""
        known = (*self.tops, *self.keys)
        strange = next((key for key in location if key not in known and key not in wire.FOREIGN), None)
        if strange is not None:
            raise DataError(f"the location has '{strange[:80]}', which means nothing to {self.kind.title}; it knows "
                            + ", ".join(known))

    def storage(self) -> tuple[str, dict[str, Any]]:
        """The fsspec protocol and storage options with which a program can read the same by itself. Raises DataError
        where it cannot."""
        raise DataError(NO_STREAM)

    def addresses(self, host: str, port: int) -> list[str]:
        """Addresses of a host that may be connected to. Raises DataError, and DataUnavailable when the name cannot be
        looked up."""
        try:
            return network.permitted_addresses(host, port, self.loopback)
        except network.AddressRefused as problem:
            raise DataError(f"{self.kind.title}: {problem}") from None
        except OSError as problem:
            raise DataUnavailable(f"{self.kind.title}: the name '{host}' cannot be looked up: {problem}") from None

    def without_secrets(self, text: object) -> str:
        """A text of a library or server on one line, cut to a bearable length, without what nobody may see."""
        line = " ".join(without(text, secrets_of(self.kind.fields, self.values)).split())
        return line if len(line) <= LONGEST_TEXT else line[:LONGEST_TEXT] + "…"


class Mounted(Family):
    """What lies on this machine already: the storage volume that the value `volume` names, or its `folder`. Whoever
    checks a data source looks there; nothing is ever connected to."""

    keys = wire.PATH_KEYS

    def test(self) -> None:
        """Nothing to connect to."""


@dataclass(frozen=True)
class Entry:
    """A file that a server has."""

    #: Where it is to lie below the folder of its source: relative, with slashes, without `..`.
    path: str
    #: Its address, for the family.
    key: str
    #: In bytes; None when the server does not say.
    size: int | None
    #: Its ETag or time of change, empty when the server says nothing of the kind.
    version: str = ""
    #: Whether the server gives parts of it; else it is read from its beginning to its end.
    ranges: bool = True


class FileFamily(Family):
    """Servers that have files. Where there are `tops`, such as buckets, one is needed: in the location, or as the value
    of the connection that is called like the first of them."""

    keys: ClassVar[tuple[str, ...]] = wire.PATH_KEYS
    #: Whether its files have names rather than paths: there `./a` and `a//b` may be others than `a` and `a/b`.
    literal = False

    def check(self, location: Mapping[str, Any]) -> None:
        super().check(location)
        paths_of(location)
        self.top(location)

    def spellings(self, path: str) -> list[str]:
        """What a path of a location may be called there; the first that there is counts."""
        return [path, plain(path)] if self.literal and path != plain(path) else [plain(path)]

    def top(self, location: Mapping[str, Any]) -> str:
        """What the paths of a location are below, without a slash at its end; empty where that is all of the server.
        Raises DataError."""
        if not self.tops:
            return ""
        named = (location[key] for key in self.tops if location.get(key))
        found = str(next(named, self.values.get(self.tops[0], ""))).strip("/")
        if not found:
            raise DataError(f"the location needs a '{self.tops[0]}', for its connection names none")
        if ".." in found.split("/"):
            raise outside(found)
        return found

    @abstractmethod
    def entries(self, location: Mapping[str, Any]) -> Iterator[Entry]:
        """The files that a location names; a folder means everything below. At least one."""

    @abstractmethod
    def read(self, entry: Entry, start: int, end: int | None) -> Generator[bytes, None, None]:
        """The bytes from `start` up to `end`, in pieces of some MiB at most. Several threads may call it at once.

        Raises DataChanged when the file is another than `entry` by now.
        """

    def confirm(self, entry: Entry) -> None:
        """Asked when the last byte of a file is here: a server that began to answer out of one file may have ended in
        another. Where `read` sees to that, there is nothing to ask.

        Raises DataChanged when the file is another than `entry` by now.
        """

    @abstractmethod
    def storage(self) -> tuple[str, dict[str, Any]]:
        """See the base class."""

    def url(self, entry: Entry) -> str:
        """The address of a file for `fsspec.open`, beside the storage options. Raises DataError."""
        return f"{self.storage()[0]}://{entry.key}"

    def reach(self, url: str) -> None:
        """See that the server of a URL may be connected to; behind a proxy that is the proxy's to say.

        Raises DataError, and DataUnavailable when its name cannot be looked up.
        """
        from urllib.parse import urlsplit
        from urllib.request import getproxies, proxy_bypass

        parts = urlsplit(url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise DataError(f"{self.kind.title}: the port in the address of the server is no number") from None
        host = parts.hostname or ""
        if parts.scheme not in getproxies() or proxy_bypass(host):
            self.addresses(host, port)


@dataclass(frozen=True)
class Table:
    """Rows that a server has."""

    schema: pyarrow.Schema
    version: str = ""


@dataclass(frozen=True)
class Extent:
    """How much a server has of what a location names; None for what is not known."""

    rows: int | None = None
    #: Whether the rows were not counted, but are what the server thinks.
    estimated: bool = False
    #: Bytes that they take up there.
    size: int | None = None


class TableFamily(Family):
    """Servers that have tables."""

    keys: ClassVar[tuple[str, ...]] = (
        wire.TABLE_NAME, wire.SCHEMA_NAME, wire.CATALOG_NAME, wire.DATABASE_NAME, wire.QUERY)
    databases: ClassVar[tuple[str, ...]] = (wire.DATABASE_NAME, wire.CATALOG_NAME)

    def check(self, location: Mapping[str, Any]) -> None:
        super().check(location)
        what, options = wanted(location), self.kind.options
        if what.query:
            check_query(what.query, options.get("words", frozenset()), options.get("signs", frozenset()))

    @staticmethod
    def typed(name: str) -> dict[str, str]:
        """The location of a table by the name that people type: SCHEMA.TABLE."""
        schema, _, table = name.rpartition(".")
        return {wire.TABLE_NAME: table} | ({wire.SCHEMA_NAME: schema} if schema else {})

    @abstractmethod
    def table(self, location: Mapping[str, Any]) -> Table:
        """What the location names: a table, a collection or a query."""

    @abstractmethod
    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Its rows, all of one schema, in memory that does not grow with the table; each batch some 8 MiB at most."""

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        """How much that is: counted, where that is done within so many seconds."""
        return Extent()

    def cancel(self) -> None:
        """Break off what another thread is waiting for in one of the methods above."""

