"""The end of the curves of a program that writes metrics faster than the collector reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dlicmd import program_log
from dlicmd.contract import wire
from local_backend.curves.file import read
from local_backend.curves.point_reader import PointReader
from local_backend.runtime import collector
from local_backend.runtime.collector import Collector
from local_backend.runtime.paths import ExecPaths

#: Lines of the log of a program: several times what one turn reads.
COUNT = 15_000


@pytest.fixture
def paths(tmp_path: Path) -> ExecPaths:
    """The files of an exec."""
    found = ExecPaths(tmp_path / "jobs" / "local-1", tmp_path / "results" / "local-1", "local-1")
    for folder in (found.state, found.root, found.launcher_log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    return found


def ended(paths: ExecPaths, tell: Callable[[Mapping[str, Any]], None]) -> Collector:
    """Return the collector of a program that has ended, and has logged COUNT values meanwhile."""
    found = Collector(paths, [], tell)
    lines = (json.dumps({"s": step, "t": 1e9 + step, "v": {"loss": step / 2, "accuracy": 1 / (step + 1)},
                         "other": " " * 250}) for step in range(COUNT))
    log = paths.root / program_log.FILE
    log.write_text("\n".join(lines) + "\n")
    assert log.stat().st_size > 3 << 20
    return found


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each turn read one piece of the file."""
    monkeypatch.setattr(collector, "_LAST_TURN", 0.0)


def stored(paths: ExecPaths) -> tuple[dict[str, float], int]:
    """Return the last step of each thinned curve, and the number of points that are kept of the loss."""
    with paths.curves.open("rb") as file:
        thinned = {one["name"]: one["points"][-1][0] for one in read(file, "", ()).curves}
    reader = PointReader(lambda name: paths.opened(paths.points / name))
    (loss,) = reader.curves(["loss"])
    return thinned, len(reader.points(loss, COUNT, None, None).steps)


def test_values_are_read_to_their_end_after_the_program_has_ended(paths: ExecPaths) -> None:
    told: list[Mapping[str, Any]] = []
    turns: list[int] = []
    one = ended(paths, told.append)

    def goes_on() -> bool:
        turns.append(1)
        return True

    one.finish(600, goes_on)
    assert len(turns) > 2  # the runner handled messages meanwhile
    assert stored(paths) == ({"loss": COUNT - 1, "accuracy": COUNT - 1}, COUNT)
    assert told[-1][wire.LAST_METRICS]["loss"]["step"] == COUNT - 1
    assert not paths.launcher_log.exists()


@pytest.mark.parametrize(("patience", "goes_on"), [(0.0, True), (600.0, False)])
def test_an_end_that_is_not_read_in_time_is_logged(paths: ExecPaths, patience: float, goes_on: bool) -> None:
    one = ended(paths, lambda _: None)
    one.finish(patience, lambda: goes_on)
    thinned, kept = stored(paths)
    assert 0 < thinned["loss"] < COUNT - 1 and kept < COUNT
    assert "the curves lack their last values" in paths.launcher_log.read_text()
    one.finish(600, lambda: True)  # changes nothing
    assert stored(paths) == (thinned, kept)
