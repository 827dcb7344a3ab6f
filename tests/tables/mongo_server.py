"""A stand-in for MongoDB: a thread that speaks its wire protocol, enough to read a collection."""

from __future__ import annotations

import itertools
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bson

_MESSAGE, _REPLY, _QUERY = 2013, 1, 2004


class MongoServer(socketserver.ThreadingTCPServer):
    """A server with `collections` of one database.

    If `cut` is true, `getMore` breaks the connection. If `slow` is true, counting exceeds its time limit.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.collections: dict[str, list[dict[str, Any]]] = {}
        self.cursors: dict[int, list[dict[str, Any]]] = {}
        self.numbers = itertools.count(1)
        self.filters: list[Any] = []
        self.cut = self.slow = False
        super().__init__(("127.0.0.1", 0), _Handler)

    def answer(self, command: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a command; None breaks the connection."""
        name = next(iter(command))
        if name.lower() in ("hello", "ismaster"):
            return {"ok": 1, "isWritablePrimary": True, "ismaster": True, "helloOk": True, "maxWireVersion": 21,
                    "minWireVersion": 0, "maxBsonObjectSize": 2**24, "maxMessageSizeBytes": 48000000,
                    "maxWriteBatchSize": 100000, "readOnly": False}
        if name == "listCollections":
            wanted = command.get("filter", {}).get("name")
            found = [{"name": one, "type": "collection"} for one in self.collections if wanted in (None, one)]
            return {"ok": 1, "cursor": {"id": 0, "ns": "test.$cmd.listCollections", "firstBatch": found}}
        if name in ("collStats", "count", "aggregate"):
            return self._measure(name, command)
        if name == "find":
            self.filters.append(command.get("filter"))
            return self._batch("firstBatch", list(self.collections[command["find"]]), command["find"])
        if name == "getMore":
            return None if self.cut else self._batch("nextBatch", self.cursors.pop(command["getMore"]),
                                                     command["collection"])
        return {"ok": 1}

    def _measure(self, name: str, command: dict[str, Any]) -> dict[str, Any]:
        count = len(self.collections[command[name]])
        if name != "aggregate":
            return {"ok": 1, "size": 100 * count, "n": count}
        if self.slow:
            return {"ok": 0, "code": 50, "codeName": "MaxTimeMSExpired", "errmsg": "operation exceeded time limit"}
        self.filters.append(command["pipeline"][0]["$match"])
        return {"ok": 1, "cursor": {"id": 0, "ns": f"test.{command[name]}", "firstBatch": [{"_id": 1, "n": count}]}}

    def _batch(self, key: str, left: list[dict[str, Any]], name: str) -> dict[str, Any]:
        number = next(self.numbers) if len(left) > 500 else 0
        if number:
            self.cursors[number] = left[500:]
        return {"ok": 1, "cursor": {"id": bson.Int64(number), "ns": f"test.{name}", key: left[:500]}}


class _Handler(socketserver.StreamRequestHandler):
    server: MongoServer

    def handle(self) -> None:
        while len(head := self.rfile.read(16)) == 16:
            length, number, _, code = struct.unpack("<iiii", head)
            body = self.rfile.read(length - 16)
            # A message has flags and a section kind before the command; a query has flags, a name and 2 numbers.
            start = 5 if code == _MESSAGE else body.index(b"\0", 4) + 9
            size = struct.unpack_from("<i", body, start)[0]
            answer = self.server.answer(bson.decode(body[start:start + size]))
            if answer is None:
                return
            packed = bson.encode(answer)
            text = struct.pack("<iB", 0, 0) + packed if code == _MESSAGE else struct.pack("<iqii", 8, 0, 0, 1) + packed
            reply = _MESSAGE if code == _MESSAGE else _REPLY
            self.wfile.write(struct.pack("<iiii", 16 + len(text), 0, number, reply) + text)


@contextmanager
def serving() -> Iterator[MongoServer]:
    """Run a server without collections."""
    with MongoServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
