"""The wheel contains everything that an installed package needs, and nothing else at the top level."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    # Build from a copy: a build leaves a build folder beside the sources.
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."],
        cwd=source, check=True, capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_contains_exactly_the_product_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "dlicmd", "local_backend", "pyedt", "fabric_data", "fabric_model.py", "callbacks.py", "emetrics.py",
    }
    assert {"dlicmd/samples/digits/train.py", "dlicmd/samples/digits/data/digits.csv.gz",
            "dlicmd/samples/digits/.dlicmdignore", "dlicmd/samples/single/train.py", "dlicmd/py.typed"} <= names
    assert any(name.startswith("local_backend/store/migrations/versions/v") for name in names)


def test_an_installed_package_finds_its_samples(wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)],
        check=True, capture_output=True,
    )
    program = "from dlicmd.sdk.paths import samples_dir; print(samples_dir())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")}, check=True,
        capture_output=True, text=True,
    )
    assert Path(done.stdout.strip()) == tmp_path / "site" / "dlicmd" / "samples"
