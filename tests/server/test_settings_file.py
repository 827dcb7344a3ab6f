"""Settings by flag, environment and file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from local_backend import setting_source
from local_backend.cli import main
from local_backend.settings import FROM_ENVIRONMENT, Settings

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes server.yaml of an empty home, with an environment that says nothing."""
    for setting in setting_source.TABLE:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path))

    def put(text: str) -> Path:
        file = tmp_path / "server.yaml"
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)
        return file

    return put


def config(*words: str) -> Result:
    return CliRunner().invoke(main, ["config", *words], catch_exceptions=False)


def test_flag_before_environment_before_file_before_default(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("slots: 3\nstop_grace: 4\nmax_upload_bytes: 2G\nkeep_days: 30\nuser_stored_bytes: 1T\nhost: 10.0.0.1\n")
    monkeypatch.setenv("DLI_STOP_GRACE", "5")
    monkeypatch.setenv("DLI_SLOTS", "7")
    settings = Settings.from_environment(slots=9)
    assert (settings.slots, settings.stop_grace, settings.limits.upload_bytes) == (9, 5, 2 * 2**30)
    assert (settings.quotas.keep_days, settings.quotas.stored_bytes, settings.leave_grace) == (30, 2**40, 60.0)
    assert settings.host == "10.0.0.1" and not settings.embedded
    assert Settings.from_environment(host="127.0.0.1").host == "127.0.0.1"
    mine = Settings.from_environment(embedded=True)
    assert mine.embedded and mine.host == "127.0.0.1", "what a client starts is its user's own"


def test_any_setting_for_one_server(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("keep_days: 30\n")
    monkeypatch.setenv("DLI_KEEP_DAYS", "40")
    assert Settings.from_environment(["keep_days=50"]).quotas.keep_days == 50
    for word, said in (("keep_day=1", "did you mean keep_days?"), ("database=x", "--set database: all users can read"),
                       ("keep_days", "--set keep_days: =VALUE is missing"),
                       ("slots=", "--set slots: no value after ="),
                       ("x", "--set needs KEY=VALUE"),
                       ("keep_days=x", "--set keep_days must be a whole number")):
        refused = CliRunner().invoke(main, ["serve", "--set", word], catch_exceptions=False)
        assert refused.exit_code == 1 and said in refused.output, refused.output


def test_without_address_or_certificate_it_is_embedded(write: Write) -> None:
    write("port: 9243\n")
    assert Settings.from_environment().embedded and Settings.from_environment().port == 9243


@pytest.mark.parametrize(("text", "said"), [
    ("slot: 3\n", "line 1: unknown setting 'slot'; did you mean slots?"),
    ("slots: 3\nslots: 4\n", "line 2: 'slots' occurs twice"),
    ("slots: many\n", "server.yaml: slots must be a whole number between 0 and 100000, not 'many'"),
    ("keep_bytes: lots\n", "server.yaml: keep_bytes must be a number of bytes"),
    ("password: x\n", "unknown setting 'password'"),
    ("- 3\n", "needs lines of 'name: value'"),
    ("slots: [3]\n", "needs one value"),
    ("{", "invalid YAML"),
    ("database: oracle://x\n", "the database must be postgresql+psycopg://"),
])
def test_what_is_wrong_is_named(text: str, said: str, write: Write) -> None:
    write(text)
    refused = config()
    assert refused.exit_code == 1 and said in refused.output and refused.output.count("\n") == 1, refused.output


def test_a_file_with_a_secret_is_for_its_owner(write: Write) -> None:
    file = write("database: postgresql://ada:secret@h/x\n")
    assert Settings.from_environment().database == "postgresql://ada:secret@h/x"
    file.chmod(0o640)
    refused = config()
    assert refused.exit_code == 1 and "chmod 600" in refused.output and "secret@" not in refused.output


def test_config_shows_all_and_no_secret(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("database: postgresql://ada:secret@h/x\nslots: 3\n")
    monkeypatch.setenv("DLI_PASSWORD", "secret")
    monkeypatch.setenv("DLI_STOP_GRACE", "5")
    said = config("-o", "json")
    rows = {row["setting"]: row for row in json.loads(said.output)}
    assert set(rows) == {setting.variable for setting in setting_source.TABLE}
    assert rows["DLI_SLOTS"] == {"setting": "DLI_SLOTS", "value": "3", "source": f"{file}: slots"}
    assert rows["DLI_STOP_GRACE"]["source"] == "DLI_STOP_GRACE" and rows["DLI_LEAVE_GRACE"]["source"] == "default"
    assert "secret" not in said.output + config().output and rows["DLI_DATABASE"]["value"] == "***"


def test_the_table_has_every_variable_that_is_read() -> None:
    import re

    root = Path(setting_source.__file__).parent
    read = re.findall(r'"(DLI_[A-Z_]+)"', (root / "settings.py").read_text() + (root / "api" / "app.py").read_text())
    assert set(read) | set(FROM_ENVIRONMENT) <= {setting.variable for setting in setting_source.TABLE}


@pytest.mark.parametrize("key", ["cache_dir", "shared_cache_dir"])
def test_no_cache_lies_where_every_job_would_see_it(write: Write, tmp_path: Path, key: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for folder in ("data/cache", "data", "link/cache", "."):
        write(f"data_fs: {tmp_path}/data\n{key}: {tmp_path}/{folder}\n")
        with pytest.raises(ValueError, match=f"server.yaml: {key} must be a folder that is not in DLI_DATA_FS"):
            Settings.from_environment()
    write(f"data_fs: {tmp_path}/data\n{key}: {tmp_path}/data-cache\n")
    assert getattr(Settings.from_environment(), key) == tmp_path / "data-cache"
