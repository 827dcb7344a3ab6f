"""Scripts for the original client against the local backend: submission, polling, logs, result, stop, deletion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from user import DEADLINE, User

pytestmark = pytest.mark.integration

SCRIPT = r"""
set -e
wait_for() {
    until dlicmd.py --exec-get $1 | grep '"state"' | grep -q -e FINISHED -e KILLED -e ERROR; do sleep 0.1; done
    dlicmd.py --exec-get $1 | sed -n 's/.*"state": "\(.*\)",/\1/p'
}
id=$(dlicmd.py --exec-start PyTorch --model-dir model --model-main train.py | grep execId | cut -d'"' -f4)
wait_for $id
dlicmd.py --exec-trainoutlogs $id | grep -c '^trained'
dlicmd.py --exec-outlogs $id | grep '^Executor'
dlicmd.py --exec-outlogs $id | grep -c '^\*Task <1> SubProcess\*: trained$'
file=$(dlicmd.py --exec-trainresult $id | awk '{print $NF}')
[ -s "$file" ] && case "$file" in dlpd-model*-result.zip) echo saved;; esac
dlicmd.py --exec-trainresult $id > /dev/null && echo overwritten
dlicmd.py --exec-stop $id | grep -c failed
late=$(dlicmd.py --exec-start PyTorch --user-cmd -- sleep 600 | tail -n +3 \
    | $PYTHON -c 'import json, sys; print(json.load(sys.stdin)["execId"])')
dlicmd.py --exec-stop $late | sed 's/ exec .* succeed/ succeed/'
wait_for $late
dlicmd.py --app-wait $late | awk -F'    ' '{print $2}'
dlicmd.py --exec-get-all | awk '{print $7}' | sed '1,2d;$d' | sort | xargs
dlicmd.py --exec-get nobody > /dev/null || echo unknown $?
dlicmd.py --exec-delete $id | sed 's/ exec .* succeed/ succeed/'
dlicmd.py --exec-delete-all
dlicmd.py --exec-get-all | wc -l
"""
MODEL = """
import os
from pathlib import Path
print("trained")
folder = Path(os.environ["RESULT_DIR"], "model")
folder.mkdir(parents=True, exist_ok=True)
(folder / "model.pt").write_bytes(b"1")
"""


def test_a_script_runs_unmodified(user: User, tmp_path: Path) -> None:
    user.model("model", train=MODEL)
    tool, link = tmp_path / "tool", tmp_path / "scripts" / "dlicmd.py"
    tool.write_text(f"#!{sys.executable}\nimport sys\nfrom dlicmd.cli import main\nsys.exit(main())\n")
    tool.chmod(0o755)
    link.parent.mkdir()
    link.symlink_to(tool)
    user.environment |= {"PATH": f"{link.parent}:{user.environment['PATH']}", "PYTHON": sys.executable}
    done = subprocess.run(["bash", "-c", SCRIPT], cwd=user.folder, env=user.environment, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines() == [
        "FINISHED", "1", "Executor 1 stdout", "1", "saved", "overwritten", "1",
        "Stop succeed. HTTP:204 ", "KILLED", "KILLED", "FINISHED KILLED", "unknown 1", "Delete succeed. HTTP:204 ",
        "Execs are deleted", "3",
    ]
