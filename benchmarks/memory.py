"""Resident memory of idle processes: server, nursery, client.

    python benchmarks/memory.py [--json]

Targets: server <= 150 MB, nursery <= 300 MB, client <= 45 MB (MB = 2**20 bytes, VmRSS; for the client its peak).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

TARGETS = {"server": 150, "nursery": 300, "client": 45}
SAMPLE = Path(__file__).parent.parent / "samples" / "single"
DATA = Path(__file__).parent.parent / "samples" / "digits" / "data"


def measure(environment: dict[str, str], home: Path) -> dict[str, float]:
    """Return the MB of each process after one job has run."""
    dlicmd = [sys.executable, "-c", "from dlicmd.cli import main; raise SystemExit(main())"]
    started = subprocess.run(
        [*dlicmd, "--exec-start", "PyTorch", "--model-dir", str(SAMPLE), "--model-main", "train.py",
         "--cs-datastore-meta", f"type=fs,data_path={DATA}", "--wait", "-o", "json", "--", "--epochs", "1"],
        env=environment, check=True, capture_output=True, text=True,
    )
    exec_id = json.loads(started.stdout)["id"]
    time.sleep(1.0)  # let the server become idle
    server = psutil.Process(json.loads((home / "backend.json").read_text())["pid"])
    nursery = next(child for child in server.children() if "nursery" in " ".join(child.cmdline()))
    pid = os.fork()
    if pid == 0:
        os.environ.update(environment)
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
        os.execve(dlicmd[0], [*dlicmd, "--exec-get", exec_id, "-o", "json"], environment)
    _, _, usage = os.wait4(pid, 0)
    assert isinstance(usage, resource.struct_rusage)
    return {
        "server": server.memory_info().rss / 2**20,
        "nursery": nursery.memory_info().rss / 2**20,
        "client": usage.ru_maxrss / 2**10,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "DLICMD_HOME": temporary}
        try:
            found = measure(environment, Path(temporary))
        finally:
            subprocess.run([sys.executable, "-m", "local_backend.cli", "stop", "--jobs"], env=environment,
                           check=False, capture_output=True)
    if options.json:
        print(json.dumps({name: {"mb": round(mb, 1), "target_mb": TARGETS[name]} for name, mb in found.items()}))
        return
    print(f"{'process':10} {'MB':>7} {'target':>7}")
    for name, mb in found.items():
        print(f"{name:10} {mb:7.1f} {TARGETS[name]:7}")


if __name__ == "__main__":
    main()
