"""Rows about workers that join, leave and die, against an elastic torchrun, and about the start of a worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from elastic_bench.rows import Effort, Row, attempt
from elastic_bench.scenes import (
    PATIENCE,
    FabricScene,
    ReadyTap,
    Scene,
    TorchrunScene,
    await_change,
    change,
    death,
    undisturbed,
)
from elastic_bench.stamps import Pause, Recovery, wait_until

MODELS = ("0.5M", "10M")


def pauses(folder: Path, effort: Effort) -> Iterator[Row]:
    """Measure the pause of the surviving workers on changes 2→4→2."""
    for model in MODELS:
        ours, why = attempt("ours", 4, lambda m=model: _changes(  # type: ignore[misc]
            FabricScene(folder / f"ours-{m}", m, 2, 4), effort.changes))
        theirs, why_not = attempt("torchrun", 4, lambda m=model: _changes(  # type: ignore[misc]
            TorchrunScene(folder / f"torchrun-{m}", m, 2, 2, 4), effort.slow_changes))
        for name in ("grow 2→4", "shrink 4→2"):
            row = Row(f"pause on {name}, {model}", "≤ 2 steps, ≤ 1/20")
            for text in dict.fromkeys((why, why_not)):
                row.add_note(text)
            _fill_pauses(row, (ours or {}).get(name), (theirs or {}).get(name))
            yield row


def _fill_pauses(row: Row, ours: list[Pause] | None, theirs: list[Pause] | None) -> None:
    if ours:
        row.ours = statistics.median(one.pause for one in ours)
        step = statistics.median(one.step for one in ours)
        worst = max(one.steps for one in ours)
        row.add_note(f"{row.ours / step:.1f} steps of {step * 1000:.0f} ms, worst {worst:.1f}")
        if any(one.restarted for one in ours):
            row.add_note("processes of survivors were replaced")
        row.details["ours"] = [asdict(one) for one in ours]
    if theirs:
        row.other = statistics.median(one.pause for one in theirs)
        row.add_note(f"torchrun made {statistics.median(one.lost for one in theirs):g} steps again")
        row.details["other"] = [asdict(one) for one in theirs]
    if row.ours is not None and row.other is not None:
        row.ratio = row.ours / row.other
        row.met = row.ratio <= 1 / 20 and row.ours <= 2 * step


def _changes(scene: Scene, times: int) -> dict[str, list[Pause]]:
    """Grow and shrink in turn. Return the pauses by kind of change."""
    found: dict[str, list[Pause]] = {"grow 2→4": [], "shrink 4→2": []}
    try:
        await_change(scene, 2, 0)
        for _ in range(times):
            found["grow 2→4"].append(change(scene, 2, 4))
            found["shrink 4→2"].append(change(scene, 4, 2))
    finally:
        scene.close()
    return found


def deaths(folder: Path, effort: Effort) -> Iterator[Row]:
    """Measure the SIGKILL of one of three workers, which is then replaced."""
    row = Row(f"SIGKILL of 1 of 3 → next step, {MODELS[0]}", "≤ 3 steps + 0.15 s, 0 lost")
    ours, why = attempt("ours", 3, lambda: _deaths(
        FabricScene(folder / "ours", MODELS[0], 3, 3), effort.changes))
    theirs, why_not = attempt("torchrun", 3, lambda: _deaths(
        TorchrunScene(folder / "torchrun", MODELS[0], 3, 2, 4), effort.slow_changes))
    for text in dict.fromkeys((why, why_not)):
        row.add_note(text)
    if ours:
        row.ours = statistics.median(one.seconds for one in ours)
        lost, step = sum(one.lost for one in ours), statistics.median(one.step for one in ours)
        row.met = row.ours <= 3 * step + 0.15 and lost == 0
        worst = max(one.seconds for one in ours)
        rejoin = [one.rejoin / one.step for one in ours if one.rejoin is not None]
        row.add_note(f"{lost} of ours lost, a step takes {step * 1000:.0f} ms, worst {worst:.2f} s")
        row.add_note(f"the replacement joins within {statistics.median(rejoin):.1f} steps, worst {max(rejoin):.1f}")
        row.details["ours"] = [asdict(one) for one in ours]
    if theirs:
        row.other = statistics.median(one.seconds for one in theirs)
        row.add_note(f"torchrun lost {statistics.median(one.lost for one in theirs):g} steps each time")
        row.details["other"] = [asdict(one) for one in theirs]
    if row.ours is not None and row.other is not None:
        row.ratio = row.ours / row.other
    yield row


def _deaths(scene: Scene, times: int) -> list[Recovery]:
    try:
        await_change(scene, 3, 0)
        return [death(scene, 3) for _ in range(times)]
    finally:
        scene.close()


def warm(folder: Path, effort: Effort) -> Iterator[Row]:
    """Measure the start of a second worker, forked or in a fresh interpreter: from the request for it until it
    reports ready."""
    row = Row("worker from request to ready", "≤ 0.3 s, ≤ 1/5")
    found, row.note = attempt("ours", 2, lambda: _starts(folder, effort.changes))
    if found:
        row.ours, row.other = (statistics.median(found[kind]) for kind in ("forked", "fresh"))
        row.ratio = statistics.median(a / b for a, b in zip(found["forked"], found["fresh"], strict=True))
        row.met = row.ours <= 0.3 and row.ratio <= 1 / 5
        row.details = {**found}
    yield row


def _starts(folder: Path, times: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"forked": [], "fresh": []}
    tap = ReadyTap()
    scene = FabricScene(folder / "ours", MODELS[0], 1, 2, tap)
    try:
        await_change(scene, 1, 0)
        for _ in range(times):
            for kind, seconds in found.items():
                undisturbed(scene, 1)
                scene.runner.cold = kind == "fresh"
                known, begin = len(tap.seconds), time.monotonic()
                scene.resize(2)
                wait_until(lambda known=known: len(tap.seconds) > known, PATIENCE, scene.failure)  # type: ignore[misc]
                seconds.append(tap.seconds[max(tap.seconds)])
                await_change(scene, 2, begin)
                scene.resize(1)
                await_change(scene, 1, time.monotonic())
    finally:
        scene.close()
    return found
