"""The database is saved before it is migrated, and can be put back."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from live_server import settings_for
from sqlalchemy import URL, create_engine

from local_backend.cli import main
from local_backend.serving.home_database import opened
from local_backend.serving.saved_database import KEPT
from local_backend.serving.server import ServingError, make_home, open_database
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.database import Database
from local_backend.store.errors import DatabaseError
from local_backend.store.migrations import upgrade

DATA = Path(__file__).parent.parent / "data"
OLD = "0007"
#: Opens the home, and kills itself between two migrations.
KILLED = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from local_backend.serving.home_database import opened
from local_backend.settings import Settings

@event.listens_for(Engine, "before_cursor_execute")
def kill(_connection, _cursor, statement, *_rest):
    if statement.startswith("UPDATE alembic_version"):
        os.kill(os.getpid(), signal.SIGKILL)

opened(Settings.from_environment())
"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The home of an earlier version."""
    settings = settings_for(tmp_path / "home")
    make_home(settings)
    with closing(sqlite3.connect(settings.paths.database)) as made:
        made.executescript((DATA / f"schema_{OLD}.sql").read_text(encoding="utf-8"))
    monkeypatch.setenv("DLICMD_HOME", str(settings.home))
    monkeypatch.delenv("DLI_DATABASE", raising=False)
    return settings


@pytest.fixture
def command() -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(main, words, catch_exceptions=False)


def rows(file: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as database:
        return [database.execute("SELECT version_num FROM alembic_version").fetchone(),
                *database.execute("SELECT * FROM execs ORDER BY id").fetchall()]


def copies(settings: Settings) -> list[Path]:
    return sorted(settings.paths.before_upgrade.iterdir())


def test_an_upgrade_saves_the_database_and_the_copy_can_be_put_back(
    old: Settings, command: Callable[..., Result]
) -> None:
    before = rows(old.paths.database)
    open_database(old).close()
    [copy] = copies(old)
    assert rows(copy) == before and OLD in copy.name
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600 and stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert rows(old.paths.database)[0] == (upgrade.VERSIONS[-1],)
    open_database(old).close()
    assert copies(old) == [copy], "an up-to-date database is not saved"
    assert command("restore", str(copy)).exit_code == 1
    done = command("restore", "--force", str(copy))
    assert done.exit_code == 0 and rows(old.paths.database) == before
    [replaced] = old.home.glob("replaced-*")
    assert rows(replaced / "backend.db")[0] == (upgrade.VERSIONS[-1],)


def test_a_killed_migration_loses_nothing(old: Settings, command: Callable[..., Result]) -> None:
    before = rows(old.paths.database)
    done = subprocess.run([sys.executable, "-c", KILLED], env=os.environ | {"DLICMD_HOME": str(old.home)}, check=False)
    assert done.returncode == -signal.SIGKILL
    [copy] = copies(old)
    assert rows(copy) == before
    done = command("restore", "--force", str(copy))
    assert done.exit_code == 0 and rows(old.paths.database) == before
    database = opened(old)
    try:
        assert len(database.read(execs.briefs)) == len(before) - 1
    finally:
        database.close()


def test_a_failed_migration_names_the_command_that_returns(old: Settings, command: Callable[..., Result]) -> None:
    with closing(sqlite3.connect(old.paths.database)) as database, database:
        database.execute("ALTER TABLE execs ADD COLUMN progress TEXT")
    before = rows(old.paths.database)
    with pytest.raises(DatabaseError) as failed:
        opened(old)
    with pytest.raises(DatabaseError):
        opened(old)
    [copy] = copies(old)
    words = f"restore --force {copy}"
    assert words in str(failed.value)
    assert command(*words.split()).exit_code == 0 and rows(old.paths.database) == before


def test_only_the_newest_copies_are_kept(old: Settings) -> None:
    old.paths.before_upgrade.mkdir()
    for number in range(5):
        (old.paths.before_upgrade / f"2020010{number}T000000Z-0001.db").touch()
    (old.paths.before_upgrade / ".left.tmp").touch()
    opened(old).close()
    assert len(copies(old)) == KEPT and OLD in copies(old)[-1].name and "20200104" in copies(old)[-2].name


def test_without_space_for_a_copy_nothing_is_migrated(old: Settings) -> None:
    before = rows(old.paths.database)
    little = replace(old, quotas=replace(old.quotas, free_bytes=2**60))
    with pytest.raises(ServingError, match="free"):
        open_database(little)
    assert copies(old) == [] and rows(old.paths.database) == before


def test_a_copy_from_elsewhere_needs_an_option(old: Settings, tmp_path: Path, command: Callable[..., Result]) -> None:
    open_database(old).close()
    [copy] = copies(old)
    copy.rename(tmp_path / "copy.db")
    assert "[backup.untagged]" in command("restore", "--force", str(tmp_path / "copy.db")).output
    assert command("restore", "--force", "--allow-untagged", str(tmp_path / "copy.db")).exit_code == 0
    (tmp_path / "copy.db").write_bytes((tmp_path / "copy.db").read_bytes()[:5000])
    refused = command("restore", "--force", "--allow-untagged", str(tmp_path / "copy.db"))
    assert "[backup.damaged]" in refused.output and rows(old.paths.database)[0] == (OLD,)


@pytest.fixture
def on_postgres(old: Settings, request: pytest.FixtureRequest) -> Iterator[Settings]:
    """The home of an earlier version with a PostgreSQL database."""
    url: URL = request.getfixturevalue("postgres").new()
    made = Database(url)
    made.open()
    made.close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{upgrade.VERSIONS[-2]}'")
    yield replace(old, database=url.render_as_string(hide_password=False))
    engine.dispose()


@pytest.mark.integration
def test_postgresql_is_saved_with_pg_dump_or_by_an_administrator(
    on_postgres: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dumping(script: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "pg_dump").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "pg_dump").chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    dumping("echo server version mismatch >&2; exit 1")
    with pytest.raises(DatabaseError) as failed:
        opened(on_postgres)
    manual = on_postgres.paths.before_upgrade / f"{upgrade.VERSIONS[-2]}.dump"
    assert "mismatch" in str(failed.value) and f"pg_dump --format=custom --file {manual}" in str(failed.value)
    assert copies(on_postgres) == []
    manual.write_bytes(b"a dump")
    os.utime(manual, (time.time() - 10 * 86400,) * 2)
    with pytest.raises(DatabaseError):
        opened(on_postgres)
    dumping('printf "%s" "$*" > "$3"')
    with pytest.raises(DatabaseError) as failed:  # this database has the newest tables already
        opened(on_postgres)
    assert "pg_restore" in str(failed.value)
    [copy] = [copy for copy in copies(on_postgres) if copy != manual]
    assert copy.stat().st_mode & 0o777 == 0o600 and "--dbname postgresql://" in copy.read_text()
