"""Tests a connection in a process of its own: the libraries that talk to such servers are large, and some hang."""

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
    """What is wrong with a connection; None when its server lets us in, or its volume is there, for a user whose data
    may lie in `roots`. Raises DataError when it cannot be tested."""
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
        return f"its server does not answer within {PATIENCE:.0f} seconds"
    try:
        said = json.loads(done.stdout)["problem"]
    except (ValueError, KeyError, TypeError):
        return f"the test ended without a word (exit code {done.returncode})"
    return None if said is None else hidden(str(said), connection)[:_LONGEST]


def hidden(text: str, connection: Connection) -> str:
    """A text of a library, with no secret of the connection in it."""
    return without(text, secrets_of(kinds.find(connection.kind).fields, connection.values))


def main() -> None:
    """Read kind and values from standard input, and say there what is wrong: {"problem": TEXT or null}."""
    order = json.loads(sys.stdin.buffer.read())
    out, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
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
    except Exception as caught:  # of whatever library
        problem = f"{type(caught).__name__}: {' '.join(str(caught).split())}"
    print(json.dumps({"problem": problem}), file=out)


if __name__ == "__main__":
    main()
