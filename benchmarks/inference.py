"""Inference, against other servers of models on the same cores, under a load generator that is not ours.

    python benchmarks/inference.py [noop] [latency] [network] [zero] [burst] [kills]
        [--peers PYTHON] [--bentoml PYTHON] [--ray PYTHON] [--mlserver PYTHON] [--seconds S] [--json]

Measures all rows if none is named. `--peers` names the Python of an environment with LitServe, Mosec and torch;
`--bentoml`, `--ray` and `--mlserver` those of environments with BentoML, `ray[serve]` and `mlserver`. A side without
an environment is left out. Needs `wrk` (Debian's package of this name). All sides of a row run in turn in the same
call.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpo import row, show
from inference_bench import ours, sides
from inference_bench.load import Measured, load

CONNECTIONS = (1, 64, 512)
#: Images of a batch, on every side.
BATCH = 32


def rates(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of a model that does nothing."""
    found: dict[str, dict[int, Measured]] = {}
    with sides.backend(), ours.serving("noop", task_batch_size=BATCH, task_pipe_size=2) as side:
        found["ours"] = _at_all(side, sides.NOOP, asked.seconds)
    for name, python in _peers(asked, ("Mosec", "LitServe", "BentoML", "Ray Serve", "MLServer")):
        with sides.peer(name, python, "noop") as side:
            found[name] = _at_all(side, sides.NOOP, asked.seconds)
    for count in CONNECTIONS:
        yield row(f"requests/s, {count} connections", found["ours"][count].rate,
                  {name: one[count].rate for name, one in found.items() if name != "ours"},
                  "Mosec >= 0.7, goal 1.0; others > 1", _failures(found, count))
        yield row(f"p99 in ms, {count} connections", 1000 * found["ours"][count].p99,
                  {name: 1000 * one[count].p99 for name, one in found.items() if name != "ours"}, "")


def latencies(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of the time that the gateway adds."""
    with sides.backend(), ours.serving("noop") as side:
        through = load(side.url, sides.NOOP, side.headers, 1, asked.seconds).p50
    bare = ours.bare_kernel(sides.NOOP, 2000)
    yield row("p50 in ms at 1 connection", 1000 * through, {"bare kernel": 1000 * bare}, "at most 1 ms more")


def networks(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of a small network that answers batches of images, by the threads of torch."""
    cores = len(os.sched_getaffinity(0))
    ours_by_threads: dict[int, float] = {}
    peers_by_threads: dict[int, dict[str, float]] = {}
    for threads in sorted({1, cores}):
        batches = {"task_batch_size": BATCH, "max_batch_delay_ms": 5, "task_pipe_size": 2}
        # A kernel has the cores of its slot.
        with sides.backend(slots=cores // threads), ours.serving("cnn", **batches) as side:
            ours_by_threads[threads] = _images(side, asked.seconds).rate
        others = peers_by_threads[threads] = {}
        for name, python in _peers(asked, ("Mosec", "LitServe")):
            with sides.peer(name, python, "cnn", threads) as side:
                others[name] = _images(side, asked.seconds).rate
        yield row(f"images/s, batches of 32, 64 connections, {threads} threads", ours_by_threads[threads], others,
                  "ratio >= 1.1")
    # Without settings, a slot of ours has one core, and torch takes all cores on the other sides.
    yield row("images/s, threads by default", ours_by_threads[1], peers_by_threads[cores], "")


def zeros(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of the first answer of a model without kernels, against the start of a server."""
    others = {}
    with sides.backend(), ours.serving("cnn", kernel_min=0, kernel_delay_release_time=1) as side:
        mine = ours.from_zero(side, sides.IMAGE)
    for name, python in _peers(asked, ("Mosec", "LitServe")):
        with sides.peer(name, python, "cnn") as side:
            others[name] = side.seconds
    yield row("seconds from no kernel to the first answer", mine, others, "1 s; ratio <= 0.2")


def bursts(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows of a burst beside an elastic training."""
    with sides.backend(slots=4):
        there, back, same = ours.burst(asked.seconds)
    yield row("seconds until kernels run on slots of a training", there, {}, "2 s")
    yield row("seconds until the training has its slots again", back, {}, "2 s", f"same final bits: {same}")


def kills(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the row of requests while kernels and gateways die and models are deployed again."""
    with sides.backend(slots=4):
        found = ours.disturbed(kernels=200, deployments=20, gateways=5)
    yield row("answers that were wrong or missing", found.wrong, {}, "0", found.summary)


def _peers(asked: argparse.Namespace, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the sides that have an environment, with its Python."""
    pythons = {"Ray Serve": asked.ray, "BentoML": asked.bentoml, "MLServer": asked.mlserver}
    for name in names:
        python = pythons.get(name, asked.peers)
        if python is not None:
            yield name, python


def _images(side: sides.Side, seconds: float) -> Measured:
    """Measure after a second of warming up."""
    load(side.url, sides.IMAGE, side.headers, 64, 1)
    return load(side.url, sides.IMAGE, side.headers, 64, seconds)


def _at_all(side: sides.Side, body: Any, seconds: float) -> dict[int, Measured]:
    """Measure at each number of connections, after a second of warming up."""
    load(side.url, body, side.headers, 8, 1)
    return {count: load(side.url, body, side.headers, count, seconds) for count in CONNECTIONS}


def _failures(found: dict[str, dict[int, Measured]], count: int) -> str:
    """Return which sides had failures."""
    return ", ".join(f"{name}: {one[count].errors} failed" for name, one in found.items() if one[count].errors)


def main() -> None:
    measures: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
        "noop": rates, "latency": latencies, "network": networks, "zero": zeros, "burst": bursts, "kills": kills}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[[], *measures], help=", ".join(measures))
    parser.add_argument("--peers", help="Python of an environment with LitServe, Mosec and torch")
    parser.add_argument("--bentoml", help="Python of an environment with BentoML")
    parser.add_argument("--ray", help="Python of an environment with Ray Serve")
    parser.add_argument("--mlserver", help="Python of an environment with MLServer")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of each load")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [one for name in asked.rows or measures for one in measures[name](asked)]
    print(json.dumps(rows)) if asked.json else show(rows)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
