"""The interface of a kind of connection: its name, the values that describe a server, and the family that talks to such
servers.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from dlicmd.contract import data_sources as wire
from dlicmd.contract.strict_json import is_unicode
from local_backend import network
from local_backend.data.errors import DataError, DataUnavailable, without
from local_backend.data.fields import Field, check_address
from local_backend.data.listing import SourceFile
from local_backend.data.locations import check_query, database_of, outside, paths_of, plain_path, selection_of

if TYPE_CHECKING:
    import pyarrow

#: Longest text of a library that is shown, in characters.
LONGEST_TEXT = 400
#: Message for a program that wants to read a table by itself.
NO_STREAM = "a table cannot be streamed; remove 'access' to get it as Parquet files"


@dataclass(frozen=True)
class Kind:
    """A kind of connection. An entry point of the group `dlicmd.data_kinds` has its name and refers to it.

    Attributes:
        name: The `type` of a connection: lower case, with `-` between words.
        title: Name that users see.
        family: Class that talks to the servers of this kind.
        fields: Values of a connection. All other values are refused.
        aliases: Other names of the kind.
        extra: Extra of `dlicmd` that installs the libraries. Empty for a kind of another package.
        modules: Modules that exist after the installation of the libraries.
        options: Constants for the family, such as dialect, port and protocol. The family reads `kind.options`.
        tested: Real server that the tests use, for the documentation. Empty if there is none.

    Examples:
        >>> url = Field("url", "address of the server", required=True, schemes=("https",))
        >>> kind = Kind("artifacts", "Artifact server", Artifacts, fields=(url,))
    """

    name: str
    title: str
    family: type[Family]
    fields: tuple[Field, ...] = ()
    aliases: tuple[str, ...] = ()
    extra: str = ""
    modules: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    tested: str = ""

    def cached(self, access: str) -> bool:
        """Return whether data from such a server goes into the cache that all jobs share.

        Args:
            access: Value of `access` of the data source: `mount`, `download` or `stream`.
        """
        return access == wire.DOWNLOAD and issubclass(self.family, FileFamily)

    def secrets(self, values: Mapping[str, str]) -> list[str]:
        """Return the secrets among the values of a connection.

        Args:
            values: Values by name or alias.

        Returns:
            The secrets that are not empty, the longest first.
        """
        names = {name for one in self.fields if one.secret for name in (one.name, *one.aliases)}
        return sorted({value for name, value in values.items() if name in names and value}, key=len, reverse=True)

    def require(self) -> None:
        """Check that the libraries of the kind are installed.

        Raises:
            DataError: A module is missing. The text names the command that installs the libraries.
        """
        if not all(_is_there(name) for name in self.modules):
            cure = f"pip install 'dlicmd[{self.extra}]'" if self.extra else ", ".join(self.modules)
            raise DataError(f"{self.title} needs libraries that are not installed on the server: {cure}")

    def open(self, values: Mapping[str, str], loopback: bool = False) -> Family:
        """Return a family for the server of a connection. The family does not connect yet.

        Args:
            values: Values of the connection by name or alias.
            loopback: Whether the family may connect to this machine, because its user is the submitter.

        Raises:
            DataError: A library or a required value is missing, or a value is unknown or invalid.
        """
        family = self.family(self, self.check(values))
        family.loopback = loopback
        return family

    def check(self, values: Mapping[str, str]) -> dict[str, str]:
        """Check the values of a connection, and return them by field name. Nothing is opened or imported.

        Args:
            values: Values of the connection by name or alias.

        Raises:
            DataError: A library or a required value is missing, or a value is unknown or invalid.
        """
        self.require()
        return self._complete(values)

    def database(self, location: Mapping[str, Any]) -> dict[str, str]:
        """Return the database that a location names, as a value that replaces the value of the connection.

        Args:
            location: The `location` of a data source.

        Returns:
            The name of the database by field name. Empty if the location names no database, or the kind has no such
                field.

        Raises:
            DataError: The name is invalid, or the location has two different names.
        """
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
                check_address(item, address, {one.name for one in self.fields})
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
    """Talk to the servers of some kinds. `FileFamily` and `TableFamily` are the base classes for new families.

    Methods raise `DataError` if a retry does not help, and `DataUnavailable` if a retry may help.

    Attributes:
        keys: Keys of a location that select data on the server.
        databases: Those of `keys` that name the database, instead of the database that the connection names.
        tops: Further keys of a location, for the place that paths are below, such as `bucket`.
        loopback: Whether the family may connect to this machine.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    databases: ClassVar[tuple[str, ...]] = ()
    tops: ClassVar[tuple[str, ...]] = ()
    loopback = False

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        """Keep the kind and the values. Do not connect here.

        Args:
            kind: The kind of the connection.
            values: Values of the connection by field name, already checked.
        """
        self.kind, self.values = kind, values

    @abstractmethod
    def test(self) -> None:
        """Connect, and check that the server accepts the credentials.

        Raises:
            DataError: The server refuses the credentials, or the address is wrong.
            DataUnavailable: The server does not answer.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close the connections to the server. The default does nothing."""

    def check(self, location: Mapping[str, Any]) -> None:
        """Check a location without a connection to the server.

        Args:
            location: The `location` of a data source.

        Raises:
            DataError: Such a server cannot have this location.
        """
        self.check_keys(location)

    def check_keys(self, location: Mapping[str, Any]) -> None:
        """Check the keys of a location. An ignored key would select other data.

        Args:
            location: The `location` of a data source.

        Raises:
            DataError: A key is neither in `tops` nor in `keys`, and is not a key that all kinds ignore.
        """
        known = (*self.tops, *self.keys)
        strange = next((key for key in location if key not in known and key not in wire.FOREIGN), None)
        if strange is not None:
            raise DataError(f"the location has '{strange[:80]}', which {self.kind.title} does not support; it supports "
                            + ", ".join(known))

    def storage(self) -> tuple[str, dict[str, Any]]:
        """Return the fsspec protocol and options with which a program streams the same data.

        Returns:
            The protocol, such as `s3`, and the keyword arguments of its file system.

        Raises:
            DataError: Programs cannot stream such data. The default raises this error.
        """
        raise DataError(NO_STREAM)

    def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host to which connections are permitted. Call this method before you connect.

        Args:
            host: Name or address that a user gave.
            port: Port of the server.

        Returns:
            At most four IP addresses. Connect to one of them, and not to the name.

        Raises:
            DataError: The host has no permitted address.
            DataUnavailable: The name lookup fails.
        """
        try:
            return network.permitted_addresses(host, port, self.loopback)
        except network.AddressRefused as problem:
            raise DataError(f"{self.kind.title}: {problem}") from None
        except OSError as problem:
            raise DataUnavailable(f"{self.kind.title}: cannot look up the host name '{host}': {problem}") from None

    def tls_wish(self) -> bool | None:
        """Return the value `ssl` of the connection as a truth value.

        Returns:
            True or False, or None if the connection has no such value.

        Raises:
            DataError: The value is neither `true` nor `false`. A typing error must not send the password in clear.
        """
        wish = self.values.get("ssl", "").lower()
        if wish not in ("", "true", "false"):
            raise DataError(f"{self.kind.title}: 'ssl' is '{wish[:40]}'; it must be true or false")
        return {"true": True, "false": False}.get(wish)

    def without_secrets(self, text: object) -> str:
        """Return a text of a library or server on one line, without the secrets of the connection.

        Args:
            text: The text, or an exception.

        Returns:
            At most 400 characters, and `…` after a text that was cut. A text with a short secret is replaced as a
                whole.
        """
        line = " ".join(without(text, self.kind.secrets(self.values)).split())
        return line if len(line) <= LONGEST_TEXT else line[:LONGEST_TEXT] + "…"


class Mounted(Family):
    """Data that is already on this machine: a storage volume, or a folder.

    The connection has the value `volume` (name of the volume) or `folder`. The server checks a data source in that
    folder and makes no connection.
    """

    keys = wire.PATH_KEYS

    def test(self) -> None:
        """Do nothing: there is no server."""


class FileFamily(Family):
    """The base class of families for servers with files.

    If a family has `tops`, such as buckets, one is required: in the location, or as the value of the connection with
    the name of the first top.

    Attributes:
        keys: Keys of a location that select files. The default is `paths`, `path` and `file_name`.
        literal: Whether files have names instead of paths. Then `./a` and `a//b` may differ from `a` and `a/b`.
    """

    keys: ClassVar[tuple[str, ...]] = wire.PATH_KEYS
    literal = False

    def check(self, location: Mapping[str, Any]) -> None:
        """Check the keys, the paths and the top of a location, without a connection to the server.

        Args:
            location: The `location` of a data source.

        Raises:
            DataError: A key is unknown, a path leads out of the data of the connection, or the top is missing.
        """
        super().check(location)
        paths_of(location)
        self.top(location)

    def spellings(self, path: str) -> list[str]:
        """Return the names that a path of a location may have on the server. The first that exists counts.

        Args:
            path: Path of a location.
        """
        return [path, plain_path(path)] if self.literal and path != plain_path(path) else [plain_path(path)]

    def top(self, location: Mapping[str, Any]) -> str:
        """Return the place that the paths of a location are below, such as a bucket.

        Args:
            location: The `location` of a data source.

        Returns:
            The place without slashes at its ends. Empty for a family without `tops`.

        Raises:
            DataError: Neither the location nor the connection names a place, or the place contains `..`.
        """
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
        """Yield the files that a location names. A folder stands for all files below it.

        Args:
            location: The `location` of a data source, already checked.

        Yields:
            At least one file. The order does not matter.

        Raises:
            DataError: The location names no file, or the server refuses the request.
            DataUnavailable: The server does not answer.
        """

    @abstractmethod
    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        """Yield the bytes of a range of a file. Several threads may call this method at once.

        Args:
            file: A file from `files`.
            start: Position of the first byte, from 0.
            end: Position after the last byte. None stands for the end of the file.

        Yields:
            Pieces of some MiB at most.

        Raises:
            DataChanged: The file is no longer the one that `file` describes.
            DataError: The server refuses the request.
            DataUnavailable: The server does not answer, or the connection breaks.
        """

    def confirm(self, file: SourceFile) -> None:
        """Check a file after its last byte has arrived. The default does nothing.

        A server may begin an answer with one version of a file and end it with another version. Override this method if
        `read` does not notice that.

        Args:
            file: A file from `files`.

        Raises:
            DataChanged: The file is no longer the one that `file` describes.
            DataUnavailable: The server does not answer.
        """

    @abstractmethod
    def storage(self) -> tuple[str, dict[str, Any]]:
        """Return the fsspec protocol and options with which a program streams the same files.

        Returns:
            The protocol, such as `s3`, and the keyword arguments of its file system.

        Raises:
            DataError: Programs cannot stream such files.
        """

    def url(self, file: SourceFile) -> str:
        """Return the address of a file for `fsspec.open`, to use with the options of `storage`.

        Args:
            file: A file from `files`.

        Raises:
            DataError: Programs cannot stream such files.
        """
        return f"{self.storage()[0]}://{file.key}"

    def reach(self, url: str) -> None:
        """Check that connections to the server of a URL are permitted. Behind a proxy, the proxy decides.

        Call this method before you connect.

        Args:
            url: Address of the server, with its scheme.

        Raises:
            DataError: The host has no permitted address, or the port is not a number.
            DataUnavailable: The name lookup fails.
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
    """A table on a server.

    Attributes:
        schema: Columns of the table as an Arrow schema.
        version: Version of the table. Empty if the server reports none.
    """

    schema: pyarrow.Schema
    version: str = ""


@dataclass(frozen=True)
class Extent:
    """The amount of data that a location names.

    Attributes:
        rows: Number of rows, or None if unknown.
        estimated: Whether `rows` is an estimate of the server and not a count.
        size: Bytes that the data takes on the server, or None if unknown.
    """

    rows: int | None = None
    estimated: bool = False
    size: int | None = None


class TableFamily(Family):
    """The base class of families for servers with tables.

    Attributes:
        keys: Keys of a location that select rows. The default is `table_name`, `schema_name`, `catalog_name`,
            `database_name` and `query`.
        databases: Those of `keys` that name the database. The default is `database_name` and `catalog_name`.
    """

    keys: ClassVar[tuple[str, ...]] = (
        wire.TABLE_NAME, wire.SCHEMA_NAME, wire.CATALOG_NAME, wire.DATABASE_NAME, wire.QUERY)
    databases: ClassVar[tuple[str, ...]] = (wire.DATABASE_NAME, wire.CATALOG_NAME)

    def check(self, location: Mapping[str, Any]) -> None:
        """Check the keys, the table and the query of a location, without a connection to the server.

        Args:
            location: The `location` of a data source.

        Raises:
            DataError: A key is unknown, the location names neither or both of a table and a query, or the query could
                change data.
        """
        super().check(location)
        what, options = selection_of(location), self.kind.options
        if what.query:
            check_query(what.query, options.get("words", frozenset()), options.get("signs", frozenset()))

    @staticmethod
    def typed(name: str) -> dict[str, str]:
        """Return the location of a table from the name that users type.

        Args:
            name: `TABLE` or `SCHEMA.TABLE`.
        """
        schema, _, table = name.rpartition(".")
        return {wire.TABLE_NAME: table} | ({wire.SCHEMA_NAME: schema} if schema else {})

    @abstractmethod
    def table(self, location: Mapping[str, Any]) -> SourceTable:
        """Return the table, collection or query that a location names.

        Args:
            location: The `location` of a data source, already checked.

        Raises:
            DataError: The server has no such table, or refuses the query.
            DataUnavailable: The server does not answer.
        """

    @abstractmethod
    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a table. Memory does not grow with the table.

        Args:
            location: The `location` of a data source, already checked.
            most_rows: Maximum number of rows that the caller needs. None stands for all rows.

        Yields:
            Batches of one schema, each of about 8 MiB at most.

        Raises:
            DataError: The server has no such table, or refuses the query.
            DataUnavailable: The server does not answer, or the connection breaks.
        """

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        """Return the amount of data. The default knows nothing about the data.

        Args:
            location: The `location` of a data source, already checked.
            seconds: Seconds that a count of the rows may take. After that, return an estimate or None.
        """
        return Extent()

    def cancel(self) -> None:
        """Interrupt `table`, `batches` or `extent`, which another thread is running. The default does nothing."""


@dataclass(frozen=True)
class Connection:
    """A server that holds data, and the credentials for it. `values` hold secrets: never show, log or store them in
    clear."""

    kind: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Name that users see; empty for a connection that is written out in the data source.
    name: str = ""
    #: `owner/name`, with which a stored submission names the connection; empty as above.
    reference: str = ""
