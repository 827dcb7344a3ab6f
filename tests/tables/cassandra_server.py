"""A stand-in for Cassandra: a thread that speaks version 4 of its protocol, enough to read a table page by page.

The codecs of the driver pack the values. Other requests of the driver get empty answers.
"""

from __future__ import annotations

import re
import socketserver
import struct
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cassandra import cqltypes

PASSWORD = "5 apples"
_VERSION = 4
_ERROR, _STARTUP, _READY, _AUTHENTICATE, _OPTIONS, _SUPPORTED, _QUERY, _RESULT = 0, 1, 2, 3, 5, 6, 7, 8
_REGISTER, _AUTH_RESPONSE, _AUTH_SUCCESS = 11, 15, 16
_PROTOCOL, _BAD_CREDENTIALS, _OVERLOADED, _SYNTAX, _INVALID = 0x000A, 0x0100, 0x1001, 0x2000, 0x2200
_ROWS, _KEYSPACE = 2, 3
_HAS_VALUES, _HAS_SIZE, _HAS_STATE = 0x01, 0x04, 0x08
_NUMBERS = {
    "ascii": 1, "bigint": 2, "blob": 3, "boolean": 4, "counter": 5, "decimal": 6, "double": 7, "float": 8, "int": 9,
    "timestamp": 0xB, "uuid": 0xC, "text": 0xD, "varint": 0xE, "timeuuid": 0xF, "inet": 0x10, "date": 0x11,
    "time": 0x12, "smallint": 0x13, "tinyint": 0x14, "list": 0x20, "map": 0x21, "set": 0x22,
}
_LOCAL = (
    ("key", cqltypes.UTF8Type, "local"), ("cluster_name", cqltypes.UTF8Type, "test"),
    ("data_center", cqltypes.UTF8Type, "dc"), ("rack", cqltypes.UTF8Type, "r"),
    ("release_version", cqltypes.UTF8Type, "4.1.0"), ("host_id", cqltypes.UUIDType, uuid.UUID(int=1)),
    ("partitioner", cqltypes.UTF8Type, "org.apache.cassandra.dht.Murmur3Partitioner"),
    ("rpc_address", cqltypes.InetAddressType, "127.0.0.1"), ("schema_version", cqltypes.UUIDType, uuid.UUID(int=2)),
)

#: The part of a query that selects from a system table.
SYSTEM = re.compile(r"\bFROM system\w*\.", re.I)
#: The only statement about a table of a user. A name is in quotes, in which a quote is doubled, or is a plain word.
_NAME = r'(?:"(?:[^"]|"")*"|\w+)'
_SELECT = re.compile(rf"SELECT (\*|COUNT\(\*\)) FROM (?:({_NAME})\.)?({_NAME})")

#: Column names and the codecs of the driver.
Columns = Sequence[tuple[str, Any]]


class CassandraServer(socketserver.ThreadingTCPServer):
    """A server with `tables` of the keyspace `test`: columns with types, and rows.

    If `busy` is true, every page after the first is refused. `statements` are the queries so far.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.tables: dict[str, tuple[Columns, Sequence[Sequence[Any]]]] = {}
        self.pages: list[int] = []
        self.statements: list[str] = []
        self.busy = False
        super().__init__(("127.0.0.1", 0), _Handler)

    def answer(self, body: bytes) -> tuple[int, bytes]:
        """Return the answer to a query: the opcode and the body of the message."""
        text, size, start = _query(body)
        self.statements.append(text)
        if text.startswith("USE "):
            return (_RESULT, struct.pack(">i", _KEYSPACE) + _text("test")) if text == 'USE "test"' else \
                _error(_INVALID, f"Keyspace {text[4:]} does not exist")
        if SYSTEM.search(text):
            return self._system(text)
        found = _SELECT.fullmatch(text)
        if found is None:
            return _error(_SYNTAX, f"no viable alternative at input '{text}'")
        keyspace, table = found[2] or "test", found[3].strip('"')
        if keyspace.strip('"') != "test" or table not in self.tables:
            return _error(_INVALID, f"unconfigured table {found[3]}")
        columns, rows = self.tables[table]
        if found[1] != "*":
            columns, rows = [("count", cqltypes.LongType)], [[len(rows)]]
        self.pages.append(start)
        if self.busy and start:
            return _error(_OVERLOADED, "too many requests")
        return _RESULT, _rows(columns, rows[start:start + size], start + size if start + size < len(rows) else None)

    def _system(self, text: str) -> tuple[int, bytes]:
        """Answer a query of system tables: this server, the table names, and no peers, keyspaces or types."""
        if re.search(r"\bFROM system\.local\b", text):
            return _RESULT, _rows([(name, kind) for name, kind, _ in _LOCAL], [[value for *_, value in _LOCAL]])
        if "system_virtual_schema" in text:
            return _error(_INVALID, "Keyspace system_virtual_schema does not exist")
        known = re.search(r"SELECT table_name FROM system_schema\.tables WHERE keyspace_name = 'test'", text)
        return _RESULT, _rows([("name", cqltypes.UTF8Type)], [[name] for name in self.tables] if known else [])


class _Handler(socketserver.StreamRequestHandler):
    server: CassandraServer

    def handle(self) -> None:
        while len(head := self.rfile.read(9)) == 9:
            version, _, stream, kind, length = struct.unpack(">BBhBi", head)
            body = self.rfile.read(length)
            code, text = self._answer(kind, body) if version == _VERSION else _error(
                _PROTOCOL, f"Invalid or unsupported protocol version ({version}); the latest supported is {_VERSION}")
            self.wfile.write(struct.pack(">BBhBi", 0x80 | _VERSION, 0, stream, code, len(text)) + text)

    def _answer(self, kind: int, body: bytes) -> tuple[int, bytes]:
        if kind == _OPTIONS:
            return _SUPPORTED, (struct.pack(">H", 2) + _text("CQL_VERSION") + struct.pack(">H", 1) + _text("3.4.5")
                                + _text("COMPRESSION") + struct.pack(">H", 0))
        if kind == _STARTUP:
            return _AUTHENTICATE, _text("org.apache.cassandra.auth.PasswordAuthenticator")
        if kind == _AUTH_RESPONSE:
            right = body[4:] == f"\0ada\0{PASSWORD}".encode()
            return (_AUTH_SUCCESS, _bytes(None)) if right else _error(
                _BAD_CREDENTIALS, "Provided username ada and/or password are incorrect")
        return self.server.answer(body) if kind == _QUERY else (_READY, b"")


def _query(body: bytes) -> tuple[str, int, int]:
    """Return the text of a query, the number of requested rows, and the first row."""
    (length,) = struct.unpack_from(">i", body)
    text, at = body[4:4 + length].decode().strip(), 4 + length
    flags, at = body[at + 2], at + 3
    assert not flags & _HAS_VALUES, "this stand-in does not support bound values"
    size, start = 5000, 0
    if flags & _HAS_SIZE:
        (size,), at = struct.unpack_from(">i", body, at), at + 4
    if flags & _HAS_STATE:
        (start,) = struct.unpack_from(">i", body, at + 4)
    return text, size, start


def _rows(columns: Columns, rows: Sequence[Sequence[Any]], more: int | None = None) -> bytes:
    flags = 1 | (0 if more is None else 2)
    head = struct.pack(">iii", _ROWS, flags, len(columns))
    if more is not None:
        head += _bytes(struct.pack(">i", more))
    head += _text("test") + _text("table")
    for name, kind in columns:
        head += _text(name) + b"".join(struct.pack(">H", _NUMBERS[one.typename]) for one in (kind, *kind.subtypes))
    return head + struct.pack(">i", len(rows)) + b"".join(
        _bytes(None if value is None else kind.serialize(value, _VERSION))
        for row in rows for (_, kind), value in zip(columns, row, strict=True))


def _text(text: str) -> bytes:
    packed = text.encode()
    return struct.pack(">H", len(packed)) + packed


def _bytes(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _error(code: int, text: str) -> tuple[int, bytes]:
    return _ERROR, struct.pack(">i", code) + _text(text)


@contextmanager
def serving() -> Iterator[CassandraServer]:
    """Run a server without tables."""
    with CassandraServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
