"""Submissions of recorded scripts, and the same submissions by `dlicmd`: missing data, memory, what is not built."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest
from user import User

#: A loop of a recorded script: it submits a job, and polls the job until it ends.
LOOP = """
execId=$("$@" | sed -n '/{/,$p' | python3 -c 'import json, sys; print(json.load(sys.stdin)["execId"])')
[ -n "$execId" ] || exit 9
until case "$state" in FINISHED|KILLED|ERROR) true;; *) false;; esac; do
    state=$("$dlicmd" --exec-get "$execId" | python3 -c 'import json, sys; print(json.load(sys.stdin)["state"])')
done
echo "$execId $state"
"""
FILL = """
import os, pathlib
data = pathlib.Path(os.environ["DATA_DIR"])
assert not list(data.iterdir())
(data / "filled").write_text("yes")
"""


@pytest.fixture
def script(user: User):
    """A function that runs the loop with `dlicmd.py` and these words of a submission."""
    program = user.home.parent / "bin" / "dlicmd.py"
    program.parent.mkdir()
    # Without the folder of this file, in which Python would find the file in place of the package.
    start = "import sys\nsys.path.pop(0)\nfrom dlicmd.cli import main\nsys.exit(main())\n"
    program.write_text(f"#!{sys.executable}\n{start}")
    program.chmod(0o755)

    def run(*words: str) -> tuple[str, str]:
        found = subprocess.run(["bash", "-c", LOOP, "loop", str(program), "--exec-start", *words],
                               env={**user.environment, "dlicmd": str(program)}, cwd=user.folder, text=True,
                               capture_output=True, timeout=150, check=False)
        assert found.returncode == 0, found
        exec_id, state = found.stdout.split()
        return exec_id, state

    return run


def test_a_recorded_loop_ends_at_what_is_not_built(user: User, script) -> None:
    exec_id, state = script("PyTorch", "--pbmodel-name", "VGG16", "--pbmodel-cmd", "train")
    assert state == "ERROR"
    message = user.run("--exec-get", exec_id).json["message"]
    for log in ("--exec-trainlogs", "--exec-launcherlogs", "--exec-outlogs", "--exec-errlogs"):
        assert message in user.run(log, exec_id).out
    assert user.run("--exec-trainresult", exec_id).code != 0
    assert user.run("--exec-delete", exec_id).code == 0
    folder = user.model("tf", train="import tensorflow\n")
    assert script("tensorflow", "--model-dir", str(folder), "--model-main", "train.py")[1] == "ERROR"


def test_dlicmd_refuses_what_is_not_built(user: User) -> None:
    folder = user.model("tf", train="import tensorflow\n")
    words = ("--exec-start", "tensorflow", "--model-dir", str(folder), "--model-main", "train.py")
    refused = user.run(*words, "-o", "json")
    assert refused.code == 2 and json.loads(refused.err.splitlines()[-1])["error"]["code"] == "submission.framework"
    assert user.run("--exec-start", "PyTorch", "--pbmodel-name", "VGG16").code == 1
    assert json.loads(user.run("--exec-get-all", "-o", "json").out) == []


def test_a_job_fills_a_data_path_that_did_not_exist(user: User, script) -> None:
    words = ("--exec-start", "PyTorch", "--model-dir", str(user.model("m", train=FILL)), "--model-main", "train.py",
             "--cs-datastore-meta", "type=fs,data_path=new/set")
    refused = user.run(*words)
    assert refused.code == 2 and "--create-data-path" in refused.err
    done = user.run(*words, "--create-data-path", "--wait")
    place = user.home / "data" / "new" / "set"
    assert done.code == 0 and str(place) in done.err
    assert (place / "filled").read_text() == "yes" and stat.S_IMODE(os.stat(place).st_mode) == 0o700
    assert script(*[word.replace("new/set", "other") for word in words[1:]])[1] == "FINISHED"
    assert (user.home / "data" / "other" / "filled").exists()


def test_too_much_memory_is_refused_in_every_manner(user: User) -> None:
    user.environment["DLI_MEMORY"] = "4G"
    words = ("--exec-start", "PyTorch", "--model-dir", str(user.model("m", train="print(1)\n")), "--model-main",
             "train.py", "--workerMemory")
    refused = user.run(*words, "9999g", "-o", "json")
    code = json.loads(refused.err.splitlines()[-1])["error"]["code"]
    assert (refused.code, code) == (10, "submission.never_schedulable")
    assert user.run(*words, "4g", "--wait").code == 0
    user.environment["DLICMD_COMPAT"] = "wmla"
    refused = user.run(*words, "9999g")
    assert refused.code == 1 and "Error 400: " in refused.out and "execId" not in refused.out
