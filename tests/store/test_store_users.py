"""Users and tokens in the database, and the migration that adds users."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from local_backend.store import tokens, users
from local_backend.store.database import Database
from local_backend.store.migrations import upgrade
from local_backend.store.users import NoSuchUser, UserExists


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(tmp_path / "x.db")
    found.open()
    yield found
    found.close()


def test_user_names_are_matched_exactly(database: Database) -> None:
    for name in ("bob", "Bob", "b", "b" * 64):
        database.write(lambda c, name=name: users.add(c, name, "hash", users.USER))
    assert {row.name for row in database.read(users.everybody)} == {"Bob", "b", "b" * 64, "bob"}
    for name in ("bo", "bob ", "BOB", "", "b%", "bob\0", "\ud800", "x" * 10_000):
        assert database.read(lambda c, name=name: users.get(c, name)) is None


def test_a_user_name_is_unique(database: Database) -> None:
    database.write(lambda c: users.add(c, "bob", "one", users.USER))
    with pytest.raises(UserExists, match="'bob' already"):
        database.write(lambda c: users.add(c, "bob", "two", users.ADMIN))
    row = database.read(lambda c: users.get(c, "bob"))
    assert row is not None and (row.password, row.role) == ("one", "user") and abs(row.created - time.time()) < 3600
    for change in (lambda c: users.set_password(c, "eve", "x"), lambda c: users.remove(c, "eve", "alice")):
        with pytest.raises(NoSuchUser, match="'eve'"):
            database.write(change)


@pytest.mark.parametrize("change", [lambda c: users.set_password(c, "bob", "new"),
                                    lambda c: users.remove(c, "bob", "alice")])
def test_tokens_end_with_a_new_password_and_with_the_user(database: Database, change) -> None:
    for name in ("bob", "carol"):
        database.write(lambda c, name=name: users.add(c, name, "hash", users.USER))
        for number in range(3):
            database.write(lambda c, n=name, m=number: tokens.keep(c, f"{n}-{m}", n, time.time() + 600))
    database.write(change)
    left = [token for token in ("bob-0", "bob-2", "carol-0", "carol-2")
            if database.read(lambda c, token=token: tokens.find(c, token))]
    assert left == ["carol-0", "carol-2"]


def test_the_migration_drops_only_the_tokens(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.db")
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).parent))
    with database._write_engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        connection.execute(text("INSERT INTO tokens VALUES ('abc', 'alice', 9e9)"))
        connection.execute(text("INSERT INTO sequences VALUES ('exec', 7)"))
    database.open()
    with database._write_engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM tokens")).scalar() == 0
        assert connection.execute(text("SELECT last FROM sequences")).scalar() == 7
    assert database.read(users.everybody) == []
    database.close()
