"""The search by the local backend: ASHA whose experiments rest at a rung and go on, on slots that survivors take over.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlicmd import Client, SearchJob
from hpo_bench.asha import EPOCHS, ETA, EXPERIMENTS, PLACES, Report, between

SPACE: list[dict[str, Any]] = [
    {"name": "learning_rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 1e-4, "maxDbVal": 0.5, "log": True},
    {"name": "dropout", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.0, "maxDbVal": 0.7},
    {"name": "width", "type": "Discrete", "dataType": "INT", "discreteIntVal": [16, 32, 64]},
]


def definition(data: Path, seed: int) -> dict[str, Any]:
    """Return the definition of the search."""
    params = {"ResourceName": "epochs", "ResourceValue": EPOCHS, "eta": ETA, "RandomSeed": seed}
    return {
        "modelSpec": {"args": f"--exec-start edtPyTorch --numWorker 2 --model-dir task --model-main train.py "
                              f"--cs-datastore-meta type=fs,data_path={data}"},
        "algoDef": {"algorithm": "ASHA", "maxJobNum": EXPERIMENTS, "maxParalleJobNum": PLACES, "resume": True,
                    "objectiveMetric": "accuracy", "objective": "maximize",
                    "algoParams": [{"name": name, "value": str(value)} for name, value in params.items()]},
        "hyperParams": SPACE,
    }


@contextmanager
def backend() -> Iterator[Path]:
    """Start a backend with 4 slots and a warm nursery, as it is after a first job. Yield its home."""
    home = Path(tempfile.mkdtemp())
    os.environ |= {"DLICMD_HOME": str(home), "DLI_SLOTS": str(PLACES)}
    try:
        dlicmd("run", "--name", "warm", "--wait", "--", sys.executable, "-c", "0")
        yield home
    finally:
        subprocess.run([str(Path(sys.executable).with_name("local-backend")), "stop"], check=False,
                       capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def dlicmd(*words: str) -> str:
    """Run a command, and return what it prints."""
    command = [str(Path(sys.executable).with_name("dlicmd")), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def search(task: Path, data: Path, seed: int) -> tuple[Report, list[dict[str, Any]]]:
    """Run the search; return its report, and the parameters of its experiments in order."""
    with backend() as home:
        file = home / "search.json"
        file.write_text(json.dumps(definition(data, seed)))
        began = time.time()
        name = json.loads(dlicmd("--hpo-start", str(file), "--model-dir", str(task), "-o", "json"))["uid"]
        with Client() as client:
            found = _ended(client, name)
            report = Report(seconds=time.time() - began)
            for one in found["experiments"]:
                curves = {curve["name"]: curve["points"] for curve in client.curves(one["appId"])}
                for epoch, (_, score, at) in enumerate(curves["test/accuracy"], 1):
                    report.note(one["id"], epoch, score, at - began)
    kinds = {"learning_rate": float, "dropout": float, "width": int}
    return report, [{item["name"]: kinds[item["name"]](item["fixedVal"]) for item in one["hyperParams"]
                     if item["name"] in kinds} for one in found["experiments"]]


def _ended(client: Any, name: str) -> Any:
    """Wait until a search has ended, and return it."""
    return SearchJob(client, client.search(name)).wait().search


def gap(task: Path, experiments: int) -> float:
    """Return the median seconds from the end of an experiment to the first step of the next one."""
    asked = {
        "modelSpec": {"args": "--exec-start PyTorch --model-dir task --model-main gap.py"},
        "algoDef": {"algorithm": "Random", "maxJobNum": experiments, "objectiveMetric": "first",
                    "objective": "minimize", "additionalMetrics": {"end": "latest"}},
        "hyperParams": SPACE,
    }
    with backend() as home, Client() as client:
        file = home / "search.json"
        file.write_text(json.dumps(asked))
        name = json.loads(dlicmd("--hpo-start", str(file), "--model-dir", str(task), "-o", "json"))["uid"]
        return between([{"first": one["metricVal"], "end": one["metrics"][0]["latest"]}
                        for one in _ended(client, name)["experiments"]])
