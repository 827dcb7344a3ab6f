"""A server for a team: it isolates jobs, or refuses to start; and what its jobs compute does not change by that."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import isolation
import psutil
import pytest
import torch
from commands import Started
from support import eventually
from user import User

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
#: Data of the fixture `team`.
DATA = "type=fs,data_path=digits"
#: Makes each batch a second longer until the file `hurry` is beside the data. So 115 steps cannot end before the test
#: has killed and resized.
SLOW = """
def collate(samples):
    if not os.path.exists(os.path.join(data_dir, "hurry")):
        time.sleep(1)
    return default_collate(samples)
"""


def serve(user: User, *words: str) -> Started:
    """Start a server, and wait until it serves or ends."""
    server = user.serve(*words)
    eventually(lambda: server.poll() is not None or (user.home / "backend.json").exists(), "the server serves or ends")
    return server


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data with the samples `digits`."""
    folder = tmp_path_factory.mktemp("lake")
    shutil.copytree(ROOT / "samples/digits/data", folder / "digits")
    return folder


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, lake: Path) -> Iterator[User]:
    """A user of a server for a team whose DLI_DATA_FS is `lake`."""
    isolation.needed()
    user = User(tmp_path_factory.mktemp("team") / "home").warm()
    user.environment["DLI_DATA_FS"] = str(lake)
    server = serve(user, "--host", "127.0.0.1")
    assert server.poll() is None, server.communicate(60)
    yield user
    user.close()
    server.communicate(timeout=60)


def shown(user: User, exec_id: str) -> dict:
    return user.run("--exec-get", exec_id).json


def pids(user: User, exec_id: str, task: str) -> list[int]:
    """Return the process ids of a task, as its runner logged them."""
    said = user.run("--exec-launcherlogs", exec_id).out
    return [int(pid) for pid in dict.fromkeys(re.findall(rf"runner: {task} started, pid (\d+)", said))]


def weights(user: User, exec_id: str) -> dict:
    fetched = user.run("--exec-trainresult", exec_id)
    assert fetched.code == 0, fetched
    folder = user.folder / f"result-{exec_id}-{user.home.name}"
    with zipfile.ZipFile(next(user.folder.glob(f"*{exec_id}-result.zip"))) as archive:
        archive.extractall(folder)
    return torch.load(next(folder.rglob("model_epoch_final.pth")), weights_only=True)


def slow_digits(folder: Path) -> Path:
    """Write the sample `digits` with slow batches, and return its folder."""
    shutil.copytree(ROOT / "samples/digits", folder, ignore=shutil.ignore_patterns("data"))
    script = folder / "train.py"
    text = script.read_text(encoding="utf-8")
    for line, more in (
        ("import sys\n", "import time\n"), ("import torch\n", "from torch.utils.data import default_collate\n"),
        ("driver_logger=EDTLoggerCallback()", ", fn_batch_collate=collate"), ('/tmp")\n\n', SLOW),
    ):
        assert line in text
        text = text.replace(line, line + more, 1)
    script.write_text(text, encoding="utf-8")
    return folder


def test_an_elastic_job_survives_a_death_and_a_resize_with_the_same_weights(
    team: User, lake: Path, tmp_path: Path
) -> None:
    """The weights are those of the program without a server."""
    model, hurry = slow_digits(tmp_path / "model"), lake / "digits" / "hurry"
    done = team.run("--exec-start", "edtPyTorch", "--model-dir", str(model), "--model-main", "train.py", "--numWorker",
                    "2", "--cs-datastore-meta", DATA, "--", "--epochs", "5")
    exec_id = done.json["execId"]
    eventually(lambda: (shown(team, exec_id).get("step") or 0) > 3, "the job trains")
    os.kill(pids(team, exec_id, "task12n-1")[0], signal.SIGKILL)
    eventually(lambda: pids(team, exec_id, "task12n-3"), "a worker takes the place of the killed one")
    os.kill(pids(team, exec_id, "task0")[0], signal.SIGKILL)
    eventually(lambda: len(pids(team, exec_id, "task0")) == 2, "the driver is restarted")
    assert team.backend("resize", exec_id, "1", "--wait").code == 0
    assert team.backend("resize", exec_id, "2", "--wait").code == 0
    hurry.touch()
    eventually(lambda: shown(team, exec_id)["state"] == "FINISHED", "the job ends")
    said = team.run("--exec-launcherlogs", exec_id).out
    assert not re.search(r"started, pid \d+: ", said), "the nursery must fork all processes"
    here = weights(team, exec_id)

    alone = os.environ | {"DATA_DIR": str(lake / "digits"), "RESULT_DIR": str(tmp_path / "alone")}
    subprocess.run([sys.executable, "train.py", "--epochs", "5"], cwd=model, env=alone, check=True)
    there = torch.load(tmp_path / "alone/model/train/model_epoch_final.pth", weights_only=True)
    assert here.keys() == there.keys() and all((here[name] == there[name]).all() for name in here)


@pytest.mark.parametrize("words", [
    ("distPyTorch", "--model-dir", "samples/ddp", "--model-main", "train.py", "--numWorker", "2", "--"),
    ("PyTorch", "--user-cmd", "--model-dir", "samples/ddp", "--", "python", "-m", "torch.distributed.run",
     "--standalone", "--nproc-per-node=2", "train.py"),
], ids=["ddp", "torchrun"])
def test_distributed_jobs_train(team: User, words: tuple[str, ...]) -> None:
    cut = words.index("--")
    done = team.run("--exec-start", *words[:cut], "--cs-datastore-meta", DATA, "--follow", *words[cut:], "--epochs",
                    "2", cwd=ROOT)
    assert done.code == 0 and re.search(r"loss [0-9.]+  on 2 workers", done.out), done


def test_without_bubblewrap_the_server_refuses_to_start(user: User, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    user.environment["PATH"] = str(tmp_path / "bin")
    server = serve(user, "--host", "127.0.0.1")
    out, err = server.communicate(timeout=60)
    assert server.returncode == 1 and out == "" and err.count("\n") == 1
    assert "server.no_isolation" in err and "bwrap" in err and "--jobs-share-server-account" in err
    found = {one["check"]: one["level"] for one in doctor(user, DLI_HOST="127.0.0.1")}
    assert found["isolation"] == "problem"
    shared = serve(user, "--host", "127.0.0.1", "--jobs-share-server-account")
    assert shared.poll() is None, shared.communicate(60)
    model = user.model("one", train="import os\nprint(os.path.exists(os.environ['DLICMD_HOME'] + '/backend.json'))\n")
    done = user.run("--exec-start", "PyTorch", "--model-dir", str(model), "--model-main", "train.py", "--follow")
    assert done.code == 0 and "True" in done.out
    assert {one["check"]: one["level"] for one in doctor(user)}["isolation"] == "warning"


def doctor(user: User, **more: str) -> list[dict]:
    user.environment |= more
    try:
        return json.loads(user.backend("doctor", "-o", "json").out)["findings"]
    finally:
        for name in more:
            del user.environment[name]


def test_the_server_shows_no_secret_in_its_environment(user: User) -> None:
    user.environment["DLI_PASSWORD"] = "correct horse battery"
    server = user.start("serve", "--embedded", program="local_backend.cli")
    eventually((user.home / "backend.json").exists, "the server serves")
    block = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert b"DLICMD_HOME=" in block and b"correct horse" not in block


@pytest.mark.skipif(os.getuid() != 0, reason="only root can read the files of a hidden process")
def test_the_server_and_the_nursery_are_hidden_from_other_processes(user: User) -> None:
    user.warm(forked=False)
    server = serve(user, "--embedded")
    nursery = eventually(lambda: [one for one in psutil.Process(server.pid).children() if "nursery" in one.name()],
                         "the nursery is there")
    for pid in (server.pid, nursery[0].pid):
        refused = subprocess.run(
            [sys.executable, "-c", f"import os; os.setuid({os.stat(user.home).st_uid} or 65534); "
             f"open('/proc/{pid}/maps')"], capture_output=True, text=True, check=False)
        assert "PermissionError" in refused.stderr


def test_a_file_in_the_home_takes_the_place_of_no_module(user: User) -> None:
    user.warm(forked=False)
    user.home.mkdir()
    for name in ("random", "json", "socket", "psutil", "struct", "torch", "local_backend"):
        (user.home / f"{name}.py").write_text(f"open({str(user.home / 'imported')!r}, 'w').write('imported')\n")
    model = user.model("model", train="print('trained')\n")
    for _ in range(2):  # without and with a ready nursery
        done = user.run("--exec-start", "PyTorch", "--model-dir", str(model), "--model-main", "train.py", "--follow")
        assert done.code == 0 and "trained" in done.out, done
    assert not (user.home / "imported").exists()
