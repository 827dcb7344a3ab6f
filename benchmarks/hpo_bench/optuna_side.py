"""The search by Optuna: asynchronous successive halving, one process of fixed size per trial."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna

from hpo_bench.asha import EPOCHS, ETA, PLACES, Report

TRIAL = """
import json, sys, time
sys.path[:0] = [sys.argv[1]]
from network import trained
config, epochs, folder = json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
for epoch, score in enumerate(trained(config, epochs, folder), 1):
    print(json.dumps([epoch, score, time.time()]), flush=True)
    if sys.stdin.readline().strip() != "go":
        break
"""


def search(configurations: list[dict[str, Any]], task: Path, data: Path) -> Report:
    """Run the search, and return its report."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    report, began, waiting, running = Report(), time.time(), list(enumerate(configurations)), {}
    with tempfile.TemporaryDirectory() as folder:
        study = optuna.create_study(
            storage=f"sqlite:///{folder}/study.db", direction="maximize",
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA))
        while waiting or running:
            while waiting and len(running) < PLACES:
                number, config = waiting.pop(0)
                words = [sys.executable, "-c", TRIAL, str(task), json.dumps(config), str(EPOCHS), str(data)]
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                assert process.stdout is not None
                running[process.stdout] = number, _asked(study, config), process
            for stream in select.select([*running], [], [])[0]:
                number, trial, process = running[stream]
                if not _goes_on(report, began, number, trial, process):
                    process.wait()
                    del running[stream]
    report.seconds = time.time() - began
    return report


def _asked(study: optuna.Study, config: dict[str, Any]) -> optuna.Trial:
    """Return a trial with these parameters."""
    study.enqueue_trial(config)
    trial = study.ask()
    for name, value in config.items():
        trial.suggest_float(name, 0, 100) if isinstance(value, float) else trial.suggest_int(name, 0, 100)
    return trial


def _goes_on(report: Report, began: float, number: int, trial: optuna.Trial, process: subprocess.Popen[str]) -> bool:
    """Take the value of one epoch, and let the trial go on or end."""
    assert process.stdout is not None and process.stdin is not None
    epoch, score, at = json.loads(process.stdout.readline())
    report.note(number, epoch, score, at - began)
    trial.report(score, epoch)
    over, pruned = epoch == EPOCHS, trial.should_prune()
    process.stdin.write("end\n" if over or pruned else "go\n")
    process.stdin.flush()
    if over or pruned:
        trial.study.tell(trial, None if pruned else score, optuna.trial.TrialState.PRUNED if pruned else None)
    return not (over or pruned)
