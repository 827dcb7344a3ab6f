"""Resolution of DATA_DIR, as a pure function of the request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from local_backend.data.errors import DataError
from local_backend.data.storage import DataRoots, beside, from_meta, places
from local_backend.settings import Settings
from local_backend.sources import volumes


@pytest.fixture(params=[True, False], ids=["own machine", "served to others"])
def roots(request: pytest.FixtureRequest, tmp_path: Path) -> DataRoots:
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    (tmp_path / "volumes" / "demo_project_pvc").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    return DataRoots(tmp_path / "data", tmp_path / "volumes", request.param)


@pytest.mark.parametrize("meta", ["type=fs,data_path=mnist", "data_path=mnist", "type=fs,data_path=/mnist"])
def test_a_path_is_joined_to_the_data_directory(meta: str, roots: DataRoots) -> None:
    assert from_meta(meta, roots) == str(roots.data_fs / "mnist")


@pytest.mark.parametrize("meta", ["", "type=fs"])
def test_without_a_path_data_dir_is_the_data_directory(meta: str, roots: DataRoots) -> None:
    assert from_meta(meta, roots) == str(roots.data_fs)


def test_absolute_paths_are_allowed_only_on_the_own_machine(roots: DataRoots, tmp_path: Path) -> None:
    path = str(tmp_path / "elsewhere")
    if roots.anywhere:
        assert from_meta(f"type=fs,data_path={path}", roots) == path
    else:
        with pytest.raises(DataError, match="not below DLI_DATA_FS"):
            from_meta(f"type=fs,data_path={path}", roots)
    assert from_meta(f"data_path={roots.data_fs}/mnist", roots) == str(roots.data_fs / "mnist")


@pytest.mark.parametrize("path", ["../elsewhere", "mnist/../../elsewhere", "/../elsewhere"])
def test_a_path_cannot_leave_the_data_directory(path: str, roots: DataRoots) -> None:
    with pytest.raises(DataError):
        from_meta(f"type=fs,data_path={path}", roots)


@pytest.mark.parametrize(
    "location", [{"paths": "mnist, ."}, {"path": "mnist,."}, {"paths": ["mnist", "."]}, {"file_name": ["mnist", "."]}]
)
def test_all_spellings_of_a_location_are_accepted(location: dict, roots: DataRoots) -> None:
    assert places(location, roots) == [str(roots.data_fs / "mnist"), str(roots.data_fs)]


def test_a_volume_is_found_by_its_recorded_name(roots: DataRoots) -> None:
    assert places({"volume": "cpd::demo-project-pvc"}, roots) == [str(roots.volumes / "demo_project_pvc")]


def test_a_linked_volume_keeps_its_path_and_limits(roots: DataRoots, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "x").mkdir()
    (roots.volumes / "linked").symlink_to(tmp_path / "elsewhere")
    assert places({"volume": "linked", "paths": "x"}, roots) == [str(roots.volumes / "linked" / "x")]
    for path in ("../demo_project_pvc", "/etc", "x/../../mnist"):
        with pytest.raises(DataError, match="is outside"):
            places({"volume": "linked", "paths": path}, roots)


def test_a_home_inside_the_data_directory_is_closed_to_jobs(tmp_path: Path) -> None:
    home = tmp_path / "data" / "home"
    for folder in ("data/mnist", "data/home/keys", "data/home/volumes/pvc", "data/home/results"):
        (tmp_path / folder).mkdir(parents=True)
    (home / "backend.db").touch()
    settings = Settings(home, tmp_path / "data", tmp_path / "results", "ada", embedded=False)
    found = volumes.roots(settings, "ada", admin=False)
    for path in ("home/keys", "home/backend.db", "home/results"):
        with pytest.raises(DataError, match="reserved for the server"):
            places({"path": path}, found)
    assert places({"path": "mnist"}, found) == [str(tmp_path / "data" / "mnist")]
    assert places({"volume": "pvc"}, found) == [str(home / "volumes" / "pvc")]


def test_a_cache_lies_beside_all_folders_that_jobs_see(tmp_path: Path) -> None:
    outer, inner = tmp_path / "gpfs" / "data", tmp_path / "gpfs" / "data" / "deep" / "lake"
    inner.mkdir(parents=True)
    (tmp_path / "linked").symlink_to(inner)
    place = tmp_path / "gpfs" / f".data.{os.getuid()}.dlicmd-cache"
    for storage in (outer, inner, tmp_path / "linked"):
        assert beside(storage, [inner, outer, tmp_path / "linked"]) == place
    assert beside(tmp_path / "linked", []) == inner.with_name(f".lake.{os.getuid()}.dlicmd-cache")
    assert not place.exists(), "beside() must not create the folder"


def test_a_cache_on_another_disk_or_of_another_user_is_refused(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / f".data.{os.getuid()}.dlicmd-cache"
    data.mkdir()
    with pytest.raises(DataError, match=r"another disk.*or set X"):
        beside(Path("/proc"), [], ", or set X")
    (tmp_path / "all").symlink_to("/")
    for storage, seen in ((data, [tmp_path / "all"]), (tmp_path / "all", [])):
        with pytest.raises(DataError, match=r"/all leads to /.*or set X"):
            beside(storage, seen, ", or set X")
    place.mkdir(mode=0o700)
    assert beside(data, []) == place
    place.chmod(0o755)
    with pytest.raises(DataError, match=str(place)):
        beside(data, [])
    place.rmdir()
    place.symlink_to(data)
    with pytest.raises(DataError, match=str(place)):
        beside(data, [])
