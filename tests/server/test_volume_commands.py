"""`local-backend volume`: the folders that can be a volume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from local_backend.cli import main

Add = Callable[[Path], Result]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """A function that adds a directory as a volume. The folders of the server are below `tmp_path`."""
    for name, folder in (("DLICMD_HOME", "here/home"), ("DLI_RESULT_FS", "results"), ("DLI_CACHE_DIR", "cache/deep"),
                         ("DLI_SHARED_CACHE_DIR", "shared-cache"), ("DLI_VOLUMES", "mnts")):
        (tmp_path / folder).mkdir(parents=True)
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.delenv("DLI_DATA_FS", raising=False)
    return lambda directory: CliRunner().invoke(main, ["volume", "add", "one", str(directory)])


@pytest.mark.parametrize(("directory", "told"), [
    ("/", "/ holds {}/here/home (DLICMD_HOME)"), ("here", "holds {}/here/home (DLICMD_HOME)"),
    ("here/home", "is {}/here/home (DLICMD_HOME)"), ("here/home/jobs", "is in {}/here/home (DLICMD_HOME)"),
    ("results", "is {}/results (DLI_RESULT_FS)"), ("results/ada", "is in {}/results (DLI_RESULT_FS)"),
    ("cache", "holds {}/cache/deep (DLI_CACHE_DIR)"), ("shared-cache", "is {}/shared-cache (DLI_SHARED_CACHE_DIR)"),
    ("mnts", "is {}/mnts (DLI_VOLUMES)"), ("link", "holds {}/here/home (DLICMD_HOME)"),
])
def test_a_folder_of_the_server_is_refused_as_a_volume(add: Add, tmp_path: Path, directory: str, told: str) -> None:
    (tmp_path / "link").symlink_to("here")
    (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    refused = add(tmp_path / directory)
    assert refused.exit_code == 1 and told.format(tmp_path) in refused.output, refused.output
    assert not list((tmp_path / "mnts").iterdir()) and not (tmp_path / "here/home/volumes.json").exists()


def test_the_home_is_refused_as_a_volume_even_inside_the_data_folder(
    add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLI_DATA_FS", str(tmp_path / "here"))
    for folder in ("home/jobs", "train"):
        (tmp_path / "here" / folder).mkdir(parents=True)
    assert "is in" in add(tmp_path / "here/home/jobs").output
    assert add(tmp_path / "here/train").exit_code == 0


@pytest.mark.parametrize("directory", ["lake", "here/home/data", "here/home/data/train", "mnts/two"])
def test_a_folder_with_only_data_is_accepted_as_a_volume(add: Add, tmp_path: Path, directory: str) -> None:
    (tmp_path / directory).mkdir(parents=True)
    added = add(tmp_path / directory)
    assert added.exit_code == 0 and (tmp_path / "mnts" / "one").resolve() == tmp_path / directory
