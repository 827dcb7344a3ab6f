"""Time from the start of a command to the first training step: dlicmd with a warm backend against torchrun by hand.

    python benchmarks/first_step.py [--runs 5] [--json]

Both sides train the same model on two CPU workers, in turn. The time ends with the first optimizer step of the slower
worker. Target: ratio <= 0.5.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE / "first_step_model"


def seconds_to_first_step(command: list[str], environment: dict[str, str], folder: Path, workers: int) -> float:
    """Run `command` to its end. Return the seconds until all `workers` had done their first step."""
    mark = folder / f"step-{time.monotonic_ns()}"
    environment = {**environment, "FIRST_STEP_FILE": str(mark)}
    command = [word.replace("FIRST_STEP_FILE", f"FIRST_STEP_FILE={mark}") for word in command]
    start = time.time()
    # The end is not timed: torch's gloo sometimes aborts a hand-written program after its last line.
    done = subprocess.run(command, env=environment, cwd=MODEL, check=False, capture_output=True, text=True)
    times = [float(file.read_text()) for file in folder.glob(f"{mark.name}.*")]
    if len(times) != workers:
        raise SystemExit(f"{command[0]}: {len(times)} of {workers} workers took a step\n{done.stdout}{done.stderr}")
    return max(times) - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scripts = Path(sys.executable).parent
        environment = {**os.environ, "DLICMD_HOME": str(folder / "home"), "DLI_SLOTS": "2", "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{scripts}{os.pathsep}{environment['PATH']}"
        ours = ["dlicmd", "--exec-start", "edtPyTorch", "--model-dir", str(MODEL), "--model-main", "elastic.py",
                "--numWorker", "2", "--wait", "--msd-env", "FIRST_STEP_FILE"]
        theirs = ["torchrun", "--standalone", "--nproc-per-node=2", "by_hand.py"]
        try:
            for command in (ours, theirs):  # not counted: compiles bytecode, starts the backend and its nursery
                seconds_to_first_step(command, environment, folder, 2)
            pairs = [
                (seconds_to_first_step(ours, environment, folder, 2),
                 seconds_to_first_step(theirs, environment, folder, 2))
                for _ in range(options.runs)
            ]
        finally:
            subprocess.run(["local-backend", "stop", "--jobs"], env=environment, check=False, capture_output=True)
    result = {
        "dlicmd_s": statistics.median(pair[0] for pair in pairs),
        "torchrun_s": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
        "target": 0.5,
        "runs": options.runs,
    }
    if options.json:
        print(json.dumps(result))
        return
    print("to the first step, median of", options.runs)
    for name, unit in (("dlicmd_s", "s"), ("torchrun_s", "s"), ("ratio", ""), ("target", "")):
        print(f"  {name:12} {result[name]:6.2f} {unit}")


if __name__ == "__main__":
    main()
