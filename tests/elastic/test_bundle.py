"""FABRIC_HOME: the zip that scripts put on sys.path contains a whole engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runner import FakeRunner
from support import PATIENCE

from local_backend.elastic.api import bundle

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "samples" / "digits"


@pytest.fixture
def fabric_home(tmp_path):
    bundle.build(tmp_path / "fabric")
    return tmp_path / "fabric"


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FABRIC_BACKEND": "pytorch", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.integration
def test_every_module_comes_from_the_zip(fabric_home):
    path = str(fabric_home / "libs" / "fabric.zip")
    code = f"""
import sys
sys.path.insert(0, {path!r})
import fabric_model, callbacks, pyedt.fabric_model, local_backend.elastic.worker.worker as worker
for module in (fabric_model, callbacks, pyedt.fabric_model, worker, sys.modules["local_backend"]):
    assert module.__file__.startswith({path!r}), module.__file__
assert fabric_model.FabricModel is pyedt.fabric_model.FabricModel
assert callbacks.LoggerCallback and callbacks.Callback
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
def test_all_of_fabric_data_comes_from_the_zip(fabric_home):
    """Editable installations are removed from sys.meta_path, because they find modules that a package lacks."""
    path = str(fabric_home / "libs" / "fabric.zip")
    code = f"""
import sys
sys.path.insert(0, {path!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
import fabric_data, importlib, pkgutil
names = [module.name for module in pkgutil.iter_modules(fabric_data.__path__)]
for name in names:
    module = importlib.import_module("fabric_data." + name)
    assert module.__file__.startswith({path!r}), module.__file__
print(*names)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    sources = REPOSITORY / "local_backend" / "fabric" / "fabric_data"
    assert done.stdout.split() == sorted(path.stem for path in sources.glob("*.py") if path.stem != "__init__")


def test_a_copy_of_emetrics_beside_the_script_overrides_the_bundled_one(fabric_home, tmp_path):
    (tmp_path / "emetrics.py").write_text("class EMetrics:\n    OWN = True\n")
    code = """
import os, sys
sys.path.insert(0, os.path.join(os.environ["FABRIC_HOME"], "libs", "fabric.zip"))
from emetrics import EMetrics
assert EMetrics.OWN
"""
    path = os.pathsep.join([str(tmp_path), str(fabric_home / "tools" / "dli_utils")])
    done = run(code, FABRIC_HOME=str(fabric_home), PYTHONPATH=path)
    assert done.returncode == 0, done.stderr


def test_emetrics_is_beside_the_tools(fabric_home):
    tools = fabric_home / "tools" / "dli_utils"
    code = f"import sys; sys.path.insert(0, {str(tools)!r}); import emetrics; print(emetrics.__file__)"
    done = run(code)
    assert done.stdout.strip() == str(tools / "emetrics.py")


def test_a_second_build_changes_nothing_and_repairs_a_broken_zip(fabric_home):
    archive = fabric_home / "libs" / "fabric.zip"
    before = archive.stat()
    bundle.build(fabric_home)
    assert archive.stat().st_mtime_ns == before.st_mtime_ns
    good = archive.read_bytes()
    archive.write_bytes(good[:100])
    bundle.build(fabric_home)
    assert archive.read_bytes() == good
    names = {path.name for path in archive.parent.iterdir()}
    assert names == {archive.resolve().parent.name, "fabric.zip"}


def test_a_build_does_not_import_torch():
    code = "import sys; import local_backend.elastic.api.bundle; assert 'torch' not in sys.modules"
    assert run(code).returncode == 0


@pytest.mark.integration
def test_the_announcement_warns_about_a_guess_and_refuses_unknown_backends():
    code = """
import os, sys, torch
for backend in ("", "pytorch", "abacus"):
    sys.modules.pop("fabric_model", None)
    os.environ["FABRIC_BACKEND"] = backend
    print("next", file=sys.stderr, flush=True)
    import fabric_model
"""
    done = run(code)
    assert done.returncode != 0
    assert done.stdout.count("Using pytorch backend.") == 2
    _, guessed, forced, wrong = done.stderr.split("next\n")
    assert guessed.count("WARNING: FABRIC_BACKEND is not set") == 1
    assert forced == ""
    assert wrong.splitlines()[-1].endswith("must be pytorch, tensorflow, keras, not 'abacus'")


@pytest.mark.slow
def test_the_digits_sample_trains_with_the_zip_on_two_workers(fabric_home, tmp_path):
    for folder in ("result", "log"):
        (tmp_path / folder).mkdir()
    environment = {"FABRIC_HOME": str(fabric_home), "DATA_DIR": str(DIGITS / "data")}
    runner = FakeRunner(tmp_path, 2)
    runner.cold = True
    ended = runner.run(DIGITS / "train.py", "--epochs", "10", **environment)
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("Test accuracy: ")]
    assert float(line.split()[-1]) >= 0.97
    weights = tmp_path / "result" / "model" / "train" / "model_epoch_final.pth"
    scored = subprocess.run(
        [sys.executable, str(DIGITS / "evaluate.py"), str(weights), "--data", str(DIGITS / "data")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert scored.stdout.strip() == line
    log = (tmp_path / "log" / "stdout").read_text().splitlines()
    train = [entry for entry in log if "] Train,\t" in entry]
    assert len(train) == 450
    # Notebooks parse these lines: they turn ':' into ',' and take columns.
    columns = train[0].replace(":", ",").split(",")
    values = [float(columns[i]) for i in (4, 6, 8, 10, 12)]
    assert values[1:3] == [1, 2]
    assert values[3] > 0
    assert 0 <= values[4] <= 1
    assert (tmp_path / "log" / "evaluation-metrics.txt").exists()
