"""Settings from flags, environment and file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import local_backend
from local_backend.cli import main
from local_backend.settings import TABLE, Settings

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A function that writes server.yaml into an empty home. The environment has no settings."""
    for setting in TABLE:
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


def test_flags_win_over_environment_and_environment_over_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("slots: 3\nstop_grace: 4\nmax_upload_bytes: 2G\nkeep_days: 30\nuser_stored_bytes: 1T\nhost: 10.0.0.1\n")
    monkeypatch.setenv("DLI_STOP_GRACE", "5")
    monkeypatch.setenv("DLI_SLOTS", "7")
    settings = Settings.from_environment(slots=9)
    assert (settings.slots, settings.stop_grace, settings.limits.upload_bytes) == (9, 5, 2 * 2**30)
    assert (settings.quotas.keep_days, settings.quotas.stored_bytes, settings.leave_grace) == (30, 2**40, 60.0)
    assert settings.host == "10.0.0.1" and not settings.embedded
    assert Settings.from_environment(host="127.0.0.1").host == "127.0.0.1"
    mine = Settings.from_environment(embedded=True)
    assert mine.embedded and mine.host == "127.0.0.1", "an embedded server must listen on loopback only"


def test_any_setting_can_be_set_for_one_server(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_server_without_address_or_certificate_is_embedded(write: Write) -> None:
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
def test_an_invalid_file_is_refused_with_its_fault(text: str, said: str, write: Write) -> None:
    write(text)
    refused = config()
    assert refused.exit_code == 1 and said in refused.output and refused.output.count("\n") == 1, refused.output


def test_a_file_with_a_secret_must_be_private(write: Write) -> None:
    file = write("database: postgresql://ada:secret@h/x\n")
    assert Settings.from_environment().database == "postgresql://ada:secret@h/x"
    file.chmod(0o640)
    refused = config()
    assert refused.exit_code == 1 and "chmod 600" in refused.output and "secret@" not in refused.output


def test_config_shows_all_settings_and_no_secret(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("database: postgresql://ada:secret@h/x\nslots: 3\n")
    monkeypatch.setenv("DLI_PASSWORD", "secret")
    monkeypatch.setenv("DLI_STOP_GRACE", "5")
    said = config("-o", "json")
    rows = {row["setting"]: row for row in json.loads(said.output)}
    assert set(rows) == {setting.variable for setting in TABLE}
    assert rows["DLI_SLOTS"] == {"setting": "DLI_SLOTS", "value": "3", "source": f"{file}: slots"}
    assert rows["DLI_STOP_GRACE"]["source"] == "DLI_STOP_GRACE" and rows["DLI_LEAVE_GRACE"]["source"] == "default"
    assert "secret" not in said.output + config().output and rows["DLI_DATABASE"]["value"] == "***"


def test_the_table_has_every_variable_that_the_server_reads() -> None:
    """Processes of a job read other variables, which the server sets (runtime/environment.py)."""
    read = {name for path in Path(local_backend.__file__).parent.rglob("*.py")
            if not {"elastic", "fabric", "runtime", "data"} & set(path.parts)
            for name in re.findall(r"""environ(?:\.get\(|\[)"(DLI\w+)""", path.read_text(encoding="utf-8"))}
    assert "DLI_CONDA_HOME" in read and read <= {setting.variable for setting in TABLE}


@pytest.mark.parametrize(("text", "size"), [
    ("4096", 4096), ("4K", 4096), ("1.5m", 3 * 2**19), ("2Gi", 2**31), ("1t", 2**40), (str(2**59), 2**59),
])
def test_bytes_are_read_with_and_without_a_unit(write: Write, text: str, size: int) -> None:
    write(f"log_bytes: {text}\n")
    assert Settings.from_environment().log_bytes == size


@pytest.mark.parametrize("text", ["4095", "3K", "0.001M", "1.5", "5000b", "5000.5", "-1", "1E9", str(10**18)])
def test_invalid_bytes_are_refused(write: Write, text: str) -> None:
    file = write(f"log_bytes: '{text}'\n")
    with pytest.raises(ValueError, match=f"{file}: log_bytes .*4096, not '{text}'"):
        Settings.from_environment()


def test_a_path_of_an_unknown_user_is_refused(write: Write) -> None:
    write("cache_dir: ~no-such-user-here/cache\n")
    with pytest.raises(ValueError, match="cache_dir"):
        Settings.from_environment()


def test_allowed_hosts_are_read_from_file_and_environment(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("allowed_hosts: a.example, b.example\n")
    assert Settings.from_environment().allowed_hosts == ("a.example", "b.example")
    monkeypatch.setenv("DLI_ALLOWED_HOSTS", "c.example,,")
    assert Settings.from_environment().allowed_hosts == ("c.example",)


def test_each_setting_is_in_the_table_once() -> None:
    assert len({setting.variable for setting in TABLE}) == len(TABLE)
    assert {setting.variable for setting in TABLE if setting.secret} == {
        "DLI_DATABASE", "DLI_PASSWORD", "DLI_USER_PASSWORD"}


def test_a_default_is_accepted_as_it_is_shown(write: Write) -> None:
    """This covers defaults that are values, not descriptions."""
    shown = {setting.key: setting.default for setting in TABLE if setting.kind.must.startswith("a number of bytes")}
    assert shown["log_bytes"] == "10 MiB" and shown["max_upload_bytes"] == "20 GiB"
    words = [f"{key}={text}" for key, text in shown.items() if "no limit" not in text and key != "memory"]
    write("")
    default, typed = Settings.from_environment(), Settings.from_environment(words)
    assert (typed.limits, typed.quotas, typed.log_bytes) == (default.limits, default.quotas, default.log_bytes)


@pytest.mark.parametrize("key", ["cache_dir", "shared_cache_dir"])
def test_a_cache_inside_the_data_folder_is_refused(write: Write, tmp_path: Path, key: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for folder in ("data/cache", "data", "link/cache", "."):
        write(f"data_fs: {tmp_path}/data\n{key}: {tmp_path}/{folder}\n")
        with pytest.raises(ValueError, match=f"server.yaml: {key} .*DLI_DATA_FS"):
            Settings.from_environment()
    write(f"data_fs: {tmp_path}/data\n{key}: {tmp_path}/data-cache\n")
    assert getattr(Settings.from_environment(), key) == tmp_path / "data-cache"
