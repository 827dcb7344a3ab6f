"""The interface of a kind of connection: its name, the values that describe a server, and the family that talks to such
servers."""

from __future__ import annotations

import importlib.util
import ipaddress
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dlicmd.contract import data_sources as wire
from dlicmd.contract.strict_json import is_unicode
from local_backend import network
from local_backend.data.errors import DataError, DataUnavailable, without
from local_backend.data.locations import check_query, database_of, outside, paths_of, plain_path, selection_of

if TYPE_CHECKING:
    import pyarrow

#: Longest text of a library that is shown, in characters.
LONGEST_TEXT = 400
#: Message for a program that wants to read a table by itself.
NO_STREAM = "a table cannot be streamed; remove 'access' to get it as Parquet files"
_LONGEST_HOST, _LONGEST_LABEL = 253, 63
#: A character other than letters, digits, hyphen and underscore. `_is_label` removes combining marks (vowel signs)
#: first.
_OTHER = re.compile(r"[^\w-]")
#: Longest name that file systems accept, in bytes.
_LONGEST_NAME = 255
_LONGEST_PATH = 3000


@dataclass(frozen=True)
class Field:
    """A value of a connection. `aliases` are other spellings of its name that clients use."""

    name: str
    help: str
    required: bool = False
    secret: bool = False
    aliases: tuple[str, ...] = ()
    #: Of an address: its permitted URL schemes, and whether a host alone is permitted, too.
    schemes: tuple[str, ...] = ()
    bare: bool = False
    #: Whether the value is a host without anything else; and whether it may be the folder of a socket instead.
    host: bool = False
    socket: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of connection. An entry point of the group `dlicmd.data_kinds` has its name and refers to it."""

    #: The `type` of a connection.
    name: str
    #: Name that users see.
    title: str
    family: type[Family]
    fields: tuple[Field, ...] = ()
    #: Other names, from consoles and earlier products.
    aliases: tuple[str, ...] = ()
    #: Extra of dlicmd that installs the libraries, and modules that exist after its installation.
    extra: str = ""
    modules: tuple[str, ...] = ()
    #: Constants for the family, such as dialect, port and protocol.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Real server that the tests use, for the documentation; empty if there is none.
    tested: str = ""

    def cached(self, access: str) -> bool:
        """Return whether data from such a server goes into a cache."""
        return access == wire.DOWNLOAD and issubclass(self.family, FileFamily)

    def secrets(self, values: Mapping[str, str]) -> list[str]:
        """Return the secrets among the values of a connection, the longest first."""
        names = {name for one in self.fields if one.secret for name in (one.name, *one.aliases)}
        return sorted({value for name, value in values.items() if name in names and value}, key=len, reverse=True)

    def require(self) -> None:
        """Raise DataError, with the command that installs them, when libraries are missing."""
        if not all(_is_there(name) for name in self.modules):
            cure = f"pip install 'dlicmd[{self.extra}]'" if self.extra else ", ".join(self.modules)
            raise DataError(f"{self.title} needs libraries that are not installed on the server: {cure}")

    def open(self, values: Mapping[str, str], loopback: bool = False) -> Family:
        """Return a family that talks to the server of a connection with these values. The family does not connect yet.
        `loopback` permits connections to this machine: its user is the submitter.

        Raises DataError when a library or a value is missing, and for a value that the kind does not know.
        """
        family = self.family(self, self.check(values))
        family.loopback = loopback
        return family

    def check(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the values by field name; open and import nothing. Raises DataError as `open` does."""
        self.require()
        return self._complete(values)

    def database(self, location: Mapping[str, Any]) -> dict[str, str]:
        """Return the database that a location names, as a value that replaces the connection's; empty if the location
        names none. Raises DataError."""
        name = database_of(location, self.family.databases)
        return {item.name: name for item in self.fields if name and "database" in (item.name, *item.aliases)}

    def _complete(self, values: Mapping[str, str]) -> dict[str, str]:
        known = {alias: item.name for item in self.fields for alias in (item.name, *item.aliases)}
        unknown = [name for name in values if name not in known]
        if unknown:
            raise DataError(f"a connection of type '{self.name}' has no field '{unknown[0]}'; its fields are "
                            + ", ".join(item.name for item in self.fields))
        given: dict[str, str] = {}
        for name, value in values.items():
            first = given.setdefault(known[name], name)
            if values[first] != value:
                raise DataError(f"'{first}' and '{name}' of the connection are two names of one value, but differ; "
                                "give only one of them")
        found = {known[name]: value for name, value in values.items()}
        missing = [item.name for item in self.fields if item.required and not found.get(item.name)]
        if missing:
            raise DataError(f"a connection of type '{self.name}' needs '{missing[0]}'")
        for item in self.fields:
            address = found.get(item.name, "")
            if not is_unicode(address):
                raise DataError(f"'{item.name}' of the connection is not UTF-8 text")
            if address and not item.secret:
                _check_address(item, address, {one.name for one in self.fields})
            if address and item.name == "port" and not (address.isascii() and address.isdecimal()
                                                        and 0 < int(address[:9]) < 65536):
                raise DataError("'port' of the connection is not a number from 1 to 65535")
        return found


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # The package of the module is missing.
        return False


class Family(ABC):
    """Talks to the servers of some kinds. Methods raise DataError, and DataUnavailable when a retry may help."""

    #: `keys` of a location select data on the server. `databases` are keys among them that name the database, instead
    #: of the one that the connection names. `tops` are further keys, for the place that paths are below.
    keys: ClassVar[tuple[str, ...]] = ()
    databases: ClassVar[tuple[str, ...]] = ()
    tops: ClassVar[tuple[str, ...]] = ()
    #: Whether the family may connect to this machine.
    loopback = False

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        self.kind, self.values = kind, values

    @abstractmethod
    def test(self) -> None:
        """Connect, and check that the server accepts the credentials."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close the connections to the server."""

    def check(self, location: Mapping[str, Any]) -> None:
        """Raise DataError for a location that such a server cannot have, as far as that shows without a connection."""
        self.check_keys(location)

    def check_keys(self, location: Mapping[str, Any]) -> None:
        """Raise DataError for a key that means nothing to such a server: to ignore the key is to read other data."""
        known = (*self.tops, *self.keys)
        strange = next((key for key in location if key not in known and key not in wire.FOREIGN), None)
        if strange is not None:
            raise DataError(f"the location has '{strange[:80]}', which {self.kind.title} does not support; it supports "
                            + ", ".join(known))

    def storage(self) -> tuple[str, dict[str, Any]]:
        """Return the fsspec protocol and storage options with which a program can read the same data by itself. Raises
        DataError if it cannot."""
        raise DataError(NO_STREAM)

    def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host to which connections are permitted. Raises DataError when there are none, and
        DataUnavailable when the name lookup fails."""
        try:
            return network.permitted_addresses(host, port, self.loopback)
        except network.AddressRefused as problem:
            raise DataError(f"{self.kind.title}: {problem}") from None
        except OSError as problem:
            raise DataUnavailable(f"{self.kind.title}: cannot look up the host name '{host}': {problem}") from None

    def tls_wish(self) -> bool | None:
        """Return the value `ssl` of the connection, None if it is not given. Raises DataError for other text than true
        and false: the password must not cross the network in clear because of a typing error."""
        wish = self.values.get("ssl", "").lower()
        if wish not in ("", "true", "false"):
            raise DataError(f"{self.kind.title}: 'ssl' is '{wish[:40]}'; it must be true or false")
        return {"true": True, "false": False}.get(wish)

    def without_secrets(self, text: object) -> str:
        """Return a text of a library or server on one line, without secrets, cut to LONGEST_TEXT."""
        line = " ".join(without(text, self.kind.secrets(self.values)).split())
        return line if len(line) <= LONGEST_TEXT else line[:LONGEST_TEXT] + "…"


class Mounted(Family):
    """Data that is already on this machine: the storage volume that the value `volume` names, or its `folder`. The
    check of a data source looks into that folder; no connection is made."""

    keys = wire.PATH_KEYS

    def test(self) -> None:
        """Do nothing: there is no server."""


@dataclass(frozen=True)
class SourceFile:
    """A file on a server."""

    #: Path below the folder of its source: relative, with slashes, without `..`.
    path: str
    #: Address of the file, for the family.
    key: str
    #: In bytes; None if the server does not report it.
    size: int | None
    #: ETag or modification time; empty if the server reports neither.
    version: str = ""
    #: Whether the server supports range reads; if not, the file is read from start to end.
    ranges: bool = True


class FileFamily(Family):
    """Servers with files. If a family has `tops`, such as buckets, one is required: in the location, or as the
    connection value with the name of the first top."""

    keys: ClassVar[tuple[str, ...]] = wire.PATH_KEYS
    #: Whether files have names rather than paths: then `./a` and `a//b` may differ from `a` and `a/b`.
    literal = False

    def check(self, location: Mapping[str, Any]) -> None:
        super().check(location)
        paths_of(location)
        self.top(location)

    def spellings(self, path: str) -> list[str]:
        """Return the names that a path of a location may have on the server; the first that exists counts."""
        return [path, plain_path(path)] if self.literal and path != plain_path(path) else [plain_path(path)]

    def top(self, location: Mapping[str, Any]) -> str:
        """Return the place that the paths of a location are below, without a trailing slash; empty for all of the
        server. Raises DataError."""
        if not self.tops:
            return ""
        named = (location[key] for key in self.tops if location.get(key))
        found = str(next(named, self.values.get(self.tops[0], ""))).strip("/")
        if not found:
            raise DataError(f"the location needs a '{self.tops[0]}' because its connection names none")
        if ".." in found.split("/"):
            raise outside(found)
        return found

    @abstractmethod
    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]:
        """Yield the files that a location names, at least one. A folder means all files below it."""

    @abstractmethod
    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        """Yield the bytes from `start` up to `end`, in pieces of some MiB at most. Several threads may call it at once.

        Raises DataChanged when the file is no longer the one that `file` describes.
        """

    def confirm(self, file: SourceFile) -> None:
        """Check a file after its last byte has arrived: a server may begin an answer with one file and end it with
        another. A family whose `read` notices this has nothing to do.

        Raises DataChanged when the file is no longer the one that `file` describes.
        """

    @abstractmethod
    def storage(self) -> tuple[str, dict[str, Any]]:
        """See the base class."""

    def url(self, file: SourceFile) -> str:
        """Return the address of a file for `fsspec.open`, to use with the storage options. Raises DataError."""
        return f"{self.storage()[0]}://{file.key}"

    def reach(self, url: str) -> None:
        """Check that connections to the server of a URL are permitted. Behind a proxy, that is the proxy's decision.

        Raises DataError, and DataUnavailable when the name lookup fails.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise DataError(f"{self.kind.title}: the port in the server address is not a number") from None
        host = parts.hostname or ""
        if parts.scheme not in getproxies() or proxy_bypass(host):
            self.addresses(host, port)


@dataclass(frozen=True)
class SourceTable:
    """A table on a server."""

    schema: pyarrow.Schema
    version: str = ""


@dataclass(frozen=True)
class Extent:
    """The amount of data that a location names; None for unknown numbers."""

    rows: int | None = None
    #: Whether `rows` is an estimate of the server and not a count.
    estimated: bool = False
    #: Bytes that the data takes on the server.
    size: int | None = None


class TableFamily(Family):
    """Servers with tables."""

    keys: ClassVar[tuple[str, ...]] = (
        wire.TABLE_NAME, wire.SCHEMA_NAME, wire.CATALOG_NAME, wire.DATABASE_NAME, wire.QUERY)
    databases: ClassVar[tuple[str, ...]] = (wire.DATABASE_NAME, wire.CATALOG_NAME)

    def check(self, location: Mapping[str, Any]) -> None:
        super().check(location)
        what, options = selection_of(location), self.kind.options
        if what.query:
            check_query(what.query, options.get("words", frozenset()), options.get("signs", frozenset()))

    @staticmethod
    def typed(name: str) -> dict[str, str]:
        """Return the location of a table from the name that users type: SCHEMA.TABLE."""
        schema, _, table = name.rpartition(".")
        return {wire.TABLE_NAME: table} | ({wire.SCHEMA_NAME: schema} if schema else {})

    @abstractmethod
    def table(self, location: Mapping[str, Any]) -> SourceTable:
        """Return the table, collection or query that the location names."""

    @abstractmethod
    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows in batches of one schema, each of about 8 MiB at most. Memory does not grow with the table."""

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        """Return the extent of the data. Rows are counted if that takes at most `seconds`."""
        return Extent()

    def cancel(self) -> None:
        """Interrupt a method above for which another thread is waiting."""


@dataclass(frozen=True)
class Connection:
    """A server that holds data, and the credentials for it. `values` hold secrets: never show, log or store them in
    clear."""

    kind: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Name that users see; empty for a connection that is written out in the data source.
    name: str = ""


def _check_address(item: Field, address: str, names: Collection[str]) -> None:
    """Raise DataError for an address that leads nowhere, or that contains a secret. `names` are the names of the fields
    of its kind."""
    if item.host:
        _check_host(item, address, "port" in names)
    elif item.schemes or "://" in address:
        _check_url(item, address, names)


def _is_host(text: str) -> bool:
    """Return whether a text is a host name or an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.removesuffix(".").split(".")
        return len(text) <= _LONGEST_HOST and all(map(_is_label, labels))
    return True


def _is_label(text: str) -> bool:
    """Return whether a text is one part of a host name, in any script."""
    plain = "".join(character for character in text if not unicodedata.category(character).startswith("M"))
    return 0 < len(text) <= _LONGEST_LABEL and plain == plain.strip("-") != "" and _OTHER.search(plain) is None


def _check_host(item: Field, host: str, has_port: bool) -> None:
    if item.socket and host.startswith("/") and host.isprintable() and "," not in host:
        return
    if not _is_host(host):
        apart = "give the port as 'port', and leave out user" if has_port else "leave out port, user"
        raise DataError(f"'{item.name}' of the connection is not a host name, an IPv4 address or an IPv6 address; "
                        f"{apart}, password and path")


def _check_url(item: Field, address: str, names: Collection[str]) -> None:
    name, bare = item.name, item.bare and "://" not in address
    try:
        parts = urlsplit(f"https://{address}" if bare else address)
        _ = parts.port
        if any(ord(character) < 32 for character in address):  # urlsplit drops these
            raise ValueError
    except ValueError:
        raise DataError(f"'{name}' of the connection is not a valid address: its host or port is invalid") from None
    if item.schemes and not (parts.hostname and parts.scheme in item.schemes):
        either = " or ".join(f"{scheme}://HOST" for scheme in item.schemes)
        raise DataError(f"'{name}' of the connection is not a server address; write {either}")
    if parts.username is not None or parts.password is not None:
        apart = "give them as 'username' and 'password'" if {"username", "password"} <= {*names} else "leave them out"
        raise DataError(f"'{name}' of the connection contains a user or password, but users can see it; {apart}")
    if parts.query:
        apart = "give it as 'query'" if "query" in names else "leave it out"
        raise DataError(f"'{name}' of the connection contains a query ('?...'), but users can see it; {apart}")
    if item.schemes and not _is_host(parts.hostname or ""):
        raise DataError(f"'{name}' of the connection is not a server address: its host is invalid")


def checked(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the files sorted by path, each once. Raises DataError when there are none, or when their paths cannot
    all be files of one folder."""
    found: dict[str, SourceFile] = {}
    folders: set[str] = set()
    for file in files:
        _check_path(file.path)
        if file.path in found and found[file.path].key != file.key:
            raise DataError(f"two files have the same path '{file.path}': {found[file.path].key} and {file.key}")
        found[file.path] = file
        parts = file.path.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    both = next(iter(sorted(folders & found.keys())), None)
    if both is not None:
        raise DataError(f"'{both}' is both a file and a folder, which no disk can store; name only the paths "
                        "that you need")
    if not found:
        raise DataError("the location contains no files")
    return [found[path] for path in sorted(found)]


def _check_path(path: str) -> None:
    names = path.split("/")
    if any(name in ("", ".", "..") or len(name.encode(errors="replace")) > _LONGEST_NAME for name in names) \
            or len(path) > _LONGEST_PATH or any(ord(character) < 32 for character in path):
        shown = "".join(character if character.isprintable() else "?" for character in path[:80])
        raise DataError(f"'{shown}' is not a valid file path")
