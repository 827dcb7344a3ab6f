"""A real MariaDB server for tests, where installed (on Debian: mariadb-server-core and mariadb-client-core)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from server_process import NotThere, free_port
from support import PATIENCE, eventually

PASSWORD = "5 apples"


@dataclass
class MariadbServer:
    """A server that listens on loopback."""

    folder: Path
    process: subprocess.Popen[bytes]
    port: int

    def ask(self, statement: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement as administrator and return its rows."""
        with self.asking(database) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    @contextmanager
    def asking(self, database: str | None = None) -> Iterator[Any]:
        """Open a session of the administrator, which holds its locks until the end of the block."""
        with pymysql.connect(unix_socket=str(self.folder / "socket"), user="root", database=database,
                             autocommit=True) as connection, connection.cursor() as cursor:
            yield cursor

    def kill(self) -> None:
        """Kill the server without a shutdown."""
        self.process.kill()
        self.process.wait(PATIENCE)


def _binaries() -> tuple[Path, Path]:
    """Return the server program and the program that initializes its files. Raises NotThere."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    server, maker = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server is None or maker is None:
        raise NotThere("mariadbd or mariadb-install-db is not on PATH "
                       "(on Debian: mariadb-server-core and mariadb-client-core)")
    return Path(server), Path(maker)


@contextmanager
def serving() -> Iterator[MariadbServer]:
    """Run a server with an all-powerful user `ada`, and remove it afterwards. Raises NotThere."""
    binary, maker = _binaries()
    base = binary.resolve().parent.parent
    # The path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="my-"))
    process = None
    try:
        user = ["--user=root"] if os.getuid() == 0 else []
        made = subprocess.run(
            [maker, "--no-defaults", f"--basedir={base}", f"--datadir={folder / 'data'}", "--skip-test-db",
             "--auth-root-authentication-method=normal", *user], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise NotThere(f"the MariaDB in {base} does not run: {made.stdout[-500:]}{made.stderr[-500:]}")
        port = free_port()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [binary, "--no-defaults", f"--datadir={folder / 'data'}", f"--port={port}", "--bind-address=127.0.0.1",
                 f"--socket={folder / 'socket'}", f"--lc-messages-dir={base / 'share' / 'mysql'}",
                 "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", *user],
                cwd=folder, stdout=log, stderr=log)
        server = MariadbServer(folder, process, port)
        eventually(lambda: _answers(server), "MariaDB starts")
        server.ask(f"CREATE USER ada@'%' IDENTIFIED BY '{PASSWORD}'")
        server.ask("GRANT ALL ON *.* TO ada@'%'")
        yield server
    finally:
        if process is not None:
            process.kill()
            process.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(server: MariadbServer) -> bool:
    assert server.process.poll() is None, (server.folder / "log").read_text()
    try:
        return server.ask("SELECT 1") == [(1,)]
    except pymysql.OperationalError:
        return False
