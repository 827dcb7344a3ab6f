"""Time that a command of the client takes, against the shortest script that a user would write for the same calls.

`dlicmd --exec-get ID -o json` and a 15-line script with argparse and requests make the same calls to the same server,
in turn. Prints one table, or with --json one object. Target: a ratio of wall times of at most 1.0; the goal is 0.5.
Also prints two differences between the least CPU times of all runs: `--help` minus a bare interpreter (60 ms at
most), and `--exec-get` minus an interpreter that imports requests (30 ms at most).
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

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "client"))

from fake_server import BASE, TOKEN, FakeServer, exec_object  # noqa: E402

EXEC_ID = "wmla-1"
SCRIPT = f'''
import argparse, json, os
import requests

parser = argparse.ArgumentParser()
parser.add_argument("--exec-get")
parser.add_argument("-o", "--output")
args = parser.parse_args()
with open(os.path.join(os.environ["DLICMD_HOME"], "backend.json")) as file:
    backend = json.load(file)
session = requests.Session()
session.headers["Authorization"] = "Bearer " + backend["token"]
found = session.get(backend["url"] + "{BASE}/execs/" + args.exec_get, timeout=60).json()
query = {{"type": "paralleljob", "name": found["appId"]}}
found["parallelJobInfo"] = session.get(
    backend["url"] + "{BASE}/scheduler/kubernetesobjects", params=query, timeout=60).json()
print(json.dumps(found, indent=2))
'''


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds and peak resident MB of one run."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed with {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 2**20


def compare(runs: int) -> dict[str, object]:
    """Run both sides in turn. Return the medians of each, and the median of the ratios of neighboring runs."""
    with tempfile.TemporaryDirectory() as folder, FakeServer("argv,follow,local-paths") as server:
        server.execs[EXEC_ID] = exec_object(EXEC_ID)
        backend = {"url": server.url, "pid": os.getpid(), "token": TOKEN}
        Path(folder, "backend.json").write_text(json.dumps(backend), encoding="utf-8")
        script = Path(folder, "script.py")
        script.write_text(SCRIPT, encoding="utf-8")
        words = ["--exec-get", EXEC_ID, "-o", "json"]
        commands = {
            # The code that the installed command runs.
            "dlicmd": [sys.executable, "-c", "import sys; from dlicmd.cli import main; sys.exit(main())", *words],
            "script": [sys.executable, str(script), *words],
            "help": [sys.executable, "-c", "import sys; from dlicmd.cli import main; sys.exit(main())", "--help"],
            "bare": [sys.executable, "-c", "pass"],
            "requests": [sys.executable, "-c", "import requests"],
        }
        # Both sides run from compiled bytecode, as after an installation by pip.
        environment = {**os.environ, "DLICMD_HOME": folder, "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
        for run in range(runs + 1):
            for name, command in commands.items():
                figure = measure(command, environment)
                if run:  # the first run only compiles
                    figures[name].append(figure)
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)]
               for name, rows in figures.items()}
    ratios = [[ours / theirs for ours, theirs in zip(mine, other, strict=True)]
              for mine, other in zip(figures["dlicmd"], figures["script"], strict=True)]
    least = {name: min(cpu for _, cpu, _ in rows) * 1000 for name, rows in figures.items()}
    wall, cpu, memory = (statistics.median(column) for column in zip(*ratios, strict=True))
    return {
        "runs": runs, "wall_ratio": round(wall, 3), "cpu_ratio": round(cpu, 3), "memory_ratio": round(memory, 3),
        "help_over_bare_ms": round(least["help"] - least["bare"], 1),
        "exec_get_over_requests_ms": round(least["dlicmd"] - least["requests"], 1),
        **{name: {"wall_ms": round(values[0] * 1000, 1), "cpu_ms": round(values[1] * 1000, 1),
                  "peak_mb": round(values[2], 1)} for name, values in medians.items()},
    }


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = compare(options.runs)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'':22}{'dlicmd':>10}{'script':>10}{'ratio':>8}")
    for title, key, ratio in (("wall, ms", "wall_ms", "wall_ratio"), ("CPU, ms", "cpu_ms", "cpu_ratio"),
                              ("peak memory, MB", "peak_mb", "memory_ratio")):
        print(f"{title:22}{found['dlicmd'][key]:>10}{found['script'][key]:>10}{found[ratio]:>8}")  # type: ignore[index]
    print(f"{'least CPU, ms':40}--help, more than python: {found['help_over_bare_ms']}")
    print(f"{'':40}--exec-get, more than python that imports requests: {found['exec_get_over_requests_ms']}")


if __name__ == "__main__":
    main()
