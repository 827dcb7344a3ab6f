"""Workloads as they are stored: the present form, and the form before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from workloads import workload

from local_backend.workload import Data, DataSource, Environment, Program, Resources, Scheduling, Workload

#: The form before, as an earlier server stored it.
FLAT = Path(__file__).parent.parent / "data" / "workload_1.json"
MOUNTED = DataSource("mnist", "fs", "mount", "/data/mnist")
FETCHED = DataSource("pets", "connection_asset", "download", kind="s3", connection={"id": "c1"},
                 location={"paths": "pets/"}, target="shared")
OLD = Workload(
    id="local-2", name="Näme", creator="ada",
    program=Program("edtPyTorch", "digits", "train.py", None, ("--epochs", "a  b"),
                    {"mode": "exact", "minWorkers": "2"}),
    environment=Environment({"A": "sealed:1"}, "/opt/conda/envs/x"),
    data=Data((MOUNTED, FETCHED), "/data/mnist", "type=fs"),
    resources=Resources(num_worker=3, min_workers=2, elastic=True, device_type="gpu", device_num=2,
                        labels={"zone": ""}, memory=2**30),
    scheduling=Scheduling("bob", "/local/team", 7000, 60),
    sig_name="sig-1",
)


def test_the_form_before_is_read() -> None:
    assert Workload.from_json(FLAT.read_text()) == OLD
    assert OLD.kind == "training" and OLD.parent is None and OLD.program.bundle is None


def test_a_workload_without_another_user_counts_for_its_creator() -> None:
    flat = json.loads(FLAT.read_text()) | {"submit_user": ""}
    assert Workload.from_json(json.dumps(flat)).scheduling.user == "ada"


def test_the_first_servers_had_no_data_sources() -> None:
    flat = json.loads(FLAT.read_text())
    del flat["sources"]
    assert Workload.from_json(json.dumps(flat)).data.sources == ()


@pytest.mark.parametrize("one", [OLD, workload(), workload(
    kind="search", parent="local-1", user_cmd=("ls", "-l"), arguments=(), bundle="0" * 64)])
def test_the_present_form_says_its_version_and_loses_nothing(one: Workload) -> None:
    text = one.to_json()
    assert json.loads(text)["version"] == 2
    assert Workload.from_json(text) == one and Workload.from_json(text).to_json() == text


@pytest.mark.parametrize("change", [
    {"version": 3}, {"version": None}, {"kind": "other"}, {"program": {}}, {"resources": {"nodes": 1}},
    {"surplus": 1},
])
def test_any_other_form_is_refused(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(OLD.to_json()) | change)
    with pytest.raises((ValueError, TypeError, KeyError)):
        Workload.from_json(text)


def test_what_the_parts_say() -> None:
    assert OLD.data.fetched and not workload(sources=(MOUNTED,)).data.fetched
    assert OLD.resources.engines == 6 and not OLD.resources.shares
    assert Resources(device_share=0.5).shares and Resources(pack="p").shares
