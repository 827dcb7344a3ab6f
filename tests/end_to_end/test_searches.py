"""The sample search on a real local backend, from the command line and from Python."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from user import User

SAMPLE = Path(__file__).parents[2] / "samples" / "search"

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("definition", ["search.yaml", "search.json"])
def test_the_sample_is_found_and_read(warm: User, tmp_path: Path, definition: str) -> None:
    done = warm.run("--hpo-start", str(SAMPLE / definition), "--model-dir", str(SAMPLE), "--wait", "-o", "json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["state"], found["progress"], len(found["experiments"])) == ("FINISHED", "8/8", 8)
    name, best = found["hpoName"], found["best"]
    assert best["metricVal"] == max(one["metricVal"] for one in found["experiments"]) > 0.5
    jobs = json.loads(warm.run("ls", "--search", name, "-o", "json").out)
    assert {one["id"] for one in jobs} == {one["appId"] for one in found["experiments"]}
    assert warm.run("--hpo-export", name, str(tmp_path / "trials.csv")).code == 0
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert {row["activation"] for row in rows} <= {"relu", "tanh"} and len(rows) == 8
    assert best["appId"] in warm.run("get", name).out
