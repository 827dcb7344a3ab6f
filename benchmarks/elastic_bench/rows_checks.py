"""Rows about the cost of the checks that always run: for numbers that are not finite, and for steps in user code."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from elastic_bench.blocks import SCRIPTS, ratio
from elastic_bench.machine import environment
from elastic_bench.rows import Effort, Row, attempt

MODELS = ("0.5M", "10M")
#: Pairs of steps (with and without checks) per round.
PAIRS = 40


def checks(folder: Path, effort: Effort) -> Iterator[Row]:
    """Measure the time of a step with and without its checks, in turn within one training."""
    for model in MODELS:
        row = Row(f"checks of a step, {model}", "≤ 1.01", "ms")
        found, row.note = attempt("ours", 1, lambda m=model: _alternate(  # type: ignore[misc]
            folder / m, m, PAIRS * effort.rounds))
        if found:
            row.ours, row.other = (1000 * statistics.median(found[name]) for name in ("with", "without"))
            row.ratio = ratio(found["with"], found["without"])
            row.met = row.ratio <= 1.01
            finite, compare = statistics.median(found["finite"]), found["compare"][0]
            row.add_note(f"other: without checks; the check for finite gradients takes {1000 * finite:.2f} ms")
            row.add_note(f"digests of the state after an epoch {1000 * compare:.1f} ms")
            row.details = found
        yield row


def _alternate(folder: Path, model: str, pairs: int) -> dict[str, list[float]]:
    """Return the output of checks_train.py. Raises RuntimeError when it fails."""
    folder.mkdir(parents=True)
    variables = environment(
        FABRIC_BACKEND="pytorch", RESULT_DIR=str(folder / "result"), LOG_DIR=str(folder / "log"),
    )
    ended = subprocess.run(
        [sys.executable, str(SCRIPTS / "checks_train.py"), model, str(pairs)],
        env=variables, cwd=SCRIPTS, capture_output=True, text=True, check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"the training has failed: {ended.stderr.strip()[-300:]}")
    return json.loads(ended.stdout.splitlines()[-1])
