"""The samples, as a user types their commands, and the demo."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DATA = "type=fs,data_path=./samples/digits/data"


def test_the_main_job_trains_and_its_result_has_the_logged_accuracy(user) -> None:
    user.warm(forked=False)
    done = user.run(*sample_words(), cwd=ROOT)
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert lines[0] == "Copying files and directories ..."
    assert re.fullmatch(r"Content size: [0-9.]+[BKM]", lines[1])
    exec_id = re.search(r'"execId": "([^"]+)"', done.out)[1]
    assert f'"appId": "{exec_id}"' in done.out
    assert done.err.count("started the local backend") == 1, done.err
    accuracy = re.search(r"Test accuracy: ([0-9.]+)", done.out)[1]
    assert float(accuracy) >= 0.97

    shown = user.run("--exec-get", exec_id).json
    assert shown["state"] == "FINISHED" and shown["elastic"] is True and shown["numWorker"] == 2
    assert shown["epoch"] == shown["epochs"] == 10
    last = json.loads(user.run("get", exec_id, "-o", "json").out)["lastMetrics"]
    assert shown["step"] == shown["steps"]
    for name in ("loss", "accuracy"):
        assert last[name] == {"value": shown[name], "step": shown["step"], "stepUnit": "step"}
    assert f"{last['test/accuracy']['value']:.4f}" == accuracy
    assert f"after epoch 10: test loss {last['test/loss']['value']:.4f}, test accuracy {accuracy}" in lines

    fetched = user.run("--exec-trainresult", exec_id)
    assert fetched.code == 0, fetched
    name = re.search(r"Train result is saved to (\S+)", fetched.out)[1]
    assert re.fullmatch(rf"dlpd-model-\d+-\d+{exec_id}-result\.zip", Path(name).name)
    with zipfile.ZipFile(user.folder / name) as archive:
        archive.extractall(user.folder / "result")
    weights = next((user.folder / "result").rglob("model_epoch_final.pth"))
    assert weights.parent.name == "train"
    scored = run_script(user, ROOT / "samples/digits/evaluate.py", str(weights))
    assert re.search(r"[0-9.]+", scored)[0] and accuracy in scored, scored


def sample_words() -> list[str]:
    """Return the words of dlicmd in the first command of the page of the samples."""
    page = (ROOT / "samples/README.md").read_text(encoding="utf-8")
    return shlex.split(re.search(r"`dlicmd (--exec-start edtPyTorch [^`]+)`", page)[1])


def run_script(user, path: Path, *words: str) -> str:
    """Return the output of a plain `python path words`."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, str(path), *words], env=user.environment, capture_output=True, text=True, timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
@pytest.mark.usefixtures("warm")
def test_the_result_does_not_depend_on_the_number_of_workers(user) -> None:
    weights = []
    for slots in ("1", "2"):
        user.environment["DLI_SLOTS"] = slots
        user.backend("stop")
        done = user.run(
            "--exec-start", "edtPyTorch", "--model-dir", "samples/digits", "--model-main", "train.py",
            "--numWorker", "2", "--cs-datastore-meta", DATA, "--wait", "--", "--epochs", "2", cwd=ROOT,
        )
        assert done.code == 0, done
        exec_id = re.search(r'"execId": "([^"]+)"', done.out)[1]
        [root] = (user.home / "results").glob(f"*/batchworkdir/{exec_id}")
        assert len(list(root.glob("log/app.*-task12n-*"))) == int(slots), "each worker must have 1 log folder"
        file = root / "model/train/model_epoch_final.pth"
        import torch

        weights.append(torch.load(file, weights_only=True))
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


@pytest.mark.integration
@pytest.mark.usefixtures("warm")
def test_demo_needs_no_files(user) -> None:
    done = user.run("--demo", "--", "--epochs", "1")
    assert done.code == 0, done
    assert "Test accuracy: " in done.out


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("PyTorch", "--model-dir", "samples/single", "--model-main", "train.py", "--", "--epochs", "2"),
         r"epoch 2/2  loss [0-9.]+  test accuracy [0-9.]+"),
        (("distPyTorch", "--model-dir", "samples/ddp", "--model-main", "train.py", "--numWorker", "2", "--",
          "--epochs", "2"), r"loss [0-9.]+  on 2 workers"),
        (("PyTorch", "--user-cmd", "--model-dir", "samples/ddp", "--", "torchrun", "--standalone",
          "--nproc-per-node=2", "train.py", "--epochs", "2"), r"loss [0-9.]+  on 2 workers"),
    ],
    ids=["single", "ddp", "torchrun"],
)
def test_the_other_samples_train(user, words: tuple[str, ...], expected: str) -> None:
    if words[0] == "distPyTorch":
        user.warm()
    cut = words.index("--")
    done = user.run("--exec-start", *words[:cut], "--cs-datastore-meta", DATA, "--follow", *words[cut:], cwd=ROOT)
    assert done.code == 0, (done, user.run("--exec-trainlogs", "local-1").out)
    assert re.search(expected, done.out), done.out
