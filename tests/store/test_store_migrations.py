"""The migrations make exactly the tables that the program uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from local_backend.store.database import Database, DatabaseError
from local_backend.store.migrations import upgrade
from local_backend.store.schema import metadata


def test_migrations_make_the_schema(database: Database) -> None:
    with database._write_engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_list_of_versions_is_that_of_the_scripts() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).parent))
    scripts = list(ScriptDirectory.from_config(config).walk_revisions())
    assert [script.revision for script in reversed(scripts)] == list(upgrade.VERSIONS)


def test_an_up_to_date_database_is_opened_without_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from local_backend.store.database import Database\n"
        "database = Database(Path(sys.argv[1])); database.open(); database.close()\n"
        "print(sorted({'alembic', 'torch', 'numpy'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "x.db")]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert outputs == ["['alembic']\n", "[]\n"]


def test_the_file_is_private_and_a_folder_is_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.db")
    database.open()
    database.close()
    assert (tmp_path / "x.db").stat().st_mode & 0o777 == 0o600
    (tmp_path / "folder").mkdir()
    with pytest.raises(DatabaseError, match="folder"):
        Database(tmp_path / "folder").open()


def test_a_path_with_a_percent_sign(tmp_path: Path) -> None:
    (tmp_path / "100%s").mkdir()
    database = Database(tmp_path / "100%s" / "x.db")
    database.open()
    database.close()
