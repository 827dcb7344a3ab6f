"""The sample search on a real local backend, from the command line and from Python."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml
from user import User

SAMPLE = Path(__file__).parents[2] / "samples" / "search"


def test_the_definitions_of_the_sample_are_the_same() -> None:
    as_yaml, as_json = ((SAMPLE / f"search.{kind}").read_text(encoding="utf-8") for kind in ("yaml", "json"))
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


@pytest.mark.integration
def test_the_sample_is_found_and_read(warm: User, tmp_path: Path) -> None:
    done = warm.run("--hpo-start", str(SAMPLE / "search.yaml"), "--model-dir", str(SAMPLE), "--wait", "-o", "json")
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
