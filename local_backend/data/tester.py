"""Tests a connection in a process of its own: the libraries for such servers are large, and some hang."""

from __future__ import annotations

import json
import subprocess
import sys

from local_backend import network
from local_backend.data import kinds
from local_backend.data.errors import DataError
from local_backend.data.fs import DataRoots, mounted
from local_backend.data.hidden import secrets_of, without
from local_backend.data.kinds.base import Mounted
from local_backend.data.model import Connection

#: Seconds that a test may take.
PATIENCE = 30.0
_LONGEST = 1000


def tested(connection: Connection, roots: DataRoots) -> str | None:
    """Return what is wrong with a connection; None if its server accepts the credentials, or if its volume exists.
    `roots` are the places where the user's data may lie. Raises DataError when the connection cannot be tested."""
    kind = kinds.find(connection.kind)
    values = kind.check(connection.values)
    if issubclass(kind.family, Mounted):
        mounted(values, {}, roots)
        return None
    order = {"kind": connection.kind, "values": dict(connection.values), "loopback": roots.anywhere}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "local_backend.data.tester"], input=json.dumps(order).encode(),
            capture_output=True, timeout=PATIENCE, check=False, start_new_session=True, cwd="/",
        )
    except subprocess.TimeoutExpired:
        return f"the server did not answer within {PATIENCE:.0f} seconds"
    try:
        said = json.loads(done.stdout)["problem"]
    except (ValueError, KeyError, TypeError):
        return f"the test ended without a result (exit code {done.returncode})"
    return None if said is None else hidden(str(said), connection)[:_LONGEST]


def hidden(text: str, connection: Connection) -> str:
    """Return a text of a library without the secrets of the connection."""
    return without(text, secrets_of(kinds.find(connection.kind).fields, connection.values))


def main() -> None:
    """Read kind and values from standard input. Print the problem: {"problem": TEXT or null}."""
    order = json.loads(sys.stdin.buffer.read())
    out, sys.stdout = sys.stdout, sys.stderr  # prints of libraries are not part of the answer
    problem: str | None = None
    network.guard(order["loopback"])
    try:
        family = kinds.find(order["kind"]).open(order["values"], order["loopback"])
        try:
            family.test()
        finally:
            family.close()
    except DataError as caught:
        problem = str(caught)
    except Exception as caught:  # libraries raise any type
        problem = f"{type(caught).__name__}: {' '.join(str(caught).split())}"
    print(json.dumps({"problem": problem}), file=out)


if __name__ == "__main__":
    main()
