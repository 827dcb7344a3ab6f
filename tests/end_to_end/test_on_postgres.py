"""A backend with a PostgreSQL database."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from support import eventually
from user import User

from local_backend.settings import Settings
from local_backend.store.database import Database
from local_backend.store.errors import DatabaseError
from local_backend.store.migrations.upgrade import VERSIONS, version

if TYPE_CHECKING:
    from postgres_server import PostgresServer

pytestmark = pytest.mark.integration

UNTIL_TOLD = """
import os, time
print("secrets:", sorted(name for name in os.environ if name in ("DLI_DATABASE", "PGPASSWORD")))
open("started", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print("done")
"""
PASSWORD = "f00led-you"
CODE = "results/*/batchworkdir/*/_submitted_code/m"


@pytest.fixture
def address(postgres: PostgresServer, user: User) -> URL:
    """A database for the servers of the user."""
    url = postgres.new()
    user.environment["DLI_DATABASE"] = url.set(password=PASSWORD).render_as_string(hide_password=False)
    return url


def test_a_job_outlives_its_server_with_a_postgres_database(user: User, address: URL) -> None:
    job = user.submit("PyTorch", "--model-dir", str(user.model("m", train=UNTIL_TOLD)), "--model-main", "train.py")
    (started,) = eventually(lambda: list(user.home.glob(CODE + "/started")), "the job runs")
    assert not (user.home / "backend.db").exists()
    server = psutil.Process(user.server_pid)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    assert user.run("--exec-get", job).json["state"] == "RUNNING", "the next server must adopt the job"
    assert user.server_pid != server.pid
    second = User(user.home.parent / "second", desk="desk2")
    second.environment["DLI_DATABASE"] = user.environment["DLI_DATABASE"]
    refused = second.backend("serve")
    assert refused.code == 1 and "Another server works with this database" in refused.err, refused
    started.with_name("go").touch()
    done = user.run("--follow", job)
    assert done.code == 0 and "secrets: []" in done.out and "done" in done.out
    assert PASSWORD not in done.out + done.err + refused.out + refused.err
    assert PASSWORD not in (user.home / "backend.log").read_text()
    assert PASSWORD not in json.dumps(psutil.Process(user.server_pid).cmdline())


def _end_sessions(postgres: PostgresServer, url: URL) -> None:
    """End all sessions with the database, and wait until they have ended and given up their locks."""
    postgres.ask(f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = '{url.database}'")


def test_a_server_without_its_database_lock_does_not_write(
    postgres: PostgresServer,
) -> None:
    url = postgres.new()
    first = Database(url)
    first.open()

    def value(connection: object) -> int:
        return int(connection.execute(text("SELECT count(*) FROM sequences")).scalar())  # type: ignore[attr-defined]

    try:
        _end_sessions(postgres, url)
        assert first.write(value) == first.read(value) == 0, "the server must connect and lock again"
        assert first.damage() is None and first.read(version) == VERSIONS[-1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("local_backend.store.postgres._PATIENCE", 0.0)
            with pytest.raises(DatabaseError, match="Another server"):
                Database(url).open()
            _end_sessions(postgres, url)
            second = Database(url)
            second.open()
            try:
                with pytest.raises(SQLAlchemyError, match="Another server"):
                    first.write(value)
                assert first.read(value) == 0
            finally:
                second.close()
            assert first.write(value) == 0
    finally:
        first.close()


@pytest.mark.parametrize("words", [
    ("--database", f"postgresql+psycopg://ada:{PASSWORD}@127.0.0.1/x"),
    ("--database", f"postgresql://127.0.0.1/x?password={PASSWORD}"),
    ("--database", f"mysql://ada:{PASSWORD}@127.0.0.1/x"),
])
def test_a_password_in_the_database_option_is_refused_and_not_shown(words: tuple[str, ...], user: User) -> None:
    refused = user.backend("serve", *words)
    assert refused.code == 2 and PASSWORD not in refused.out + refused.err
    assert "DLI_DATABASE" in refused.err or "must be postgresql+psycopg://" in refused.err


def test_an_unreachable_or_invalid_database_is_reported(user: User) -> None:
    user.environment["DLI_DATABASE"] = f"postgresql+psycopg://ada:{PASSWORD}@127.0.0.1:1/x"
    refused = user.backend("serve")
    assert refused.code == 1 and PASSWORD not in refused.err and refused.err.count("\n") == 1
    assert "postgresql+psycopg://ada:***@127.0.0.1:1/x" in refused.err
    user.environment["DLI_DATABASE"] = "x"
    refused = user.backend("config")
    assert refused.code == 1 and "DLI_DATABASE" in refused.err
    user.environment["DLI_DATABASE"] = "postgresql://127.0.0.1/x"
    refused = user.backend("backup", str(user.folder / "b"))
    assert refused.code == 1 and "pg_dump" in refused.err


def test_the_settings_do_not_show_the_password() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DLI_DATABASE", f"postgresql://ada:{PASSWORD}@h/x")
        settings = Settings.from_environment()
    assert PASSWORD not in repr(settings) and PASSWORD not in Database(settings.where).name
