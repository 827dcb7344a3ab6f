"""The metrics that operators need, and the alerts about them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from live_server import Live, settings_for
from prometheus_client.parser import text_string_to_metric_families

from dlicmd.contract import wire
from dlicmd.contract.states import PENDING, RECOVERING
from local_backend.api import health
from local_backend.commands.backup import backup
from local_backend.runtime import condition
from local_backend.serving.self_signed import SelfSigned

DOCS = Path(__file__).parents[2] / "docs"
METRIC = re.compile(r"dlicmd_[a-z_]+")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("alerts") / "home"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of /metrics share no answers."""
    monkeypatch.setattr(health, "SHARED_SECONDS", 0.0)


def value(live: Live, name: str, **labels: str) -> float:
    text = live.call("GET", wire.METRICS, base="").text
    return next((sample.value for family in text_string_to_metric_families(text) for sample in family.samples
                 if sample.name == name and sample.labels == labels), 0.0)


def test_every_metric_of_an_alert_exists_and_every_alert_is_explained(home: Live) -> None:
    home.services.housekeeper.start()
    try:
        assert home.services.housekeeper.loop.completes_turn(60.0)
        text = home.call("GET", wire.METRICS, base="").text
    finally:
        home.services.housekeeper.close()
    known: set[str] = set()
    for family in text_string_to_metric_families(text):
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(family.type, [""])
        known |= {family.name + ending for ending in endings}
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    rules = [rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
             for rule in group["rules"]]
    assert len(rules) > 15
    for rule in rules:
        assert set(METRIC.findall(rule["expr"])) <= known, rule["alert"]
        assert f"`{rule['alert']}`" in page and rule["annotations"]["summary"] and rule["labels"]["severity"]
    for metric in METRIC.findall(text):
        assert any(metric.startswith(name) for name in METRIC.findall(page)), f"{metric} is not in operations.md"


def test_refusals_are_counted_by_code(home: Live) -> None:
    before = value(home, "dlicmd_refusals_total", code="exec.not_found")
    for _ in range(2):
        assert home.call("GET", "/execs/local-999").error == (400, "exec.not_found")
    assert value(home, "dlicmd_refusals_total", code="exec.not_found") == before + 2


def test_recoveries_and_requeues_are_counted(home: Live) -> None:
    names = ("dlicmd_exec_recoveries_total", "dlicmd_exec_requeues_total")
    before = [value(home, name) for name in names]
    exec_id = home.submitted()
    home.run_on(exec_id, "cpu-0")
    home.move(exec_id, RECOVERING)
    assert [value(home, name) for name in names] == [before[0] + 1, before[1]]
    home.move(exec_id, PENDING)
    assert [value(home, name) for name in names] == [before[0] + 1, before[1] + 1]


def test_the_condition_of_a_home_is_measured(tmp_path: Path) -> None:
    live = Live(settings_for(tmp_path / "home"))
    try:
        condition.measure(live.settings, live.database)
        for name in ("queue_oldest", "certificate_expires", "last_backup"):
            assert value(live, f"dlicmd_{name}_timestamp_seconds") == 0
        for place in ("home", "results", "cache"):
            free = value(live, "dlicmd_disk_free_bytes", place=place)
            assert 0 < free <= value(live, "dlicmd_disk_size_bytes", place=place)
        assert value(live, "dlicmd_database_bytes") >= live.settings.paths.database.stat().st_size > 0
        began = time.time()
        live.submitted()
        backup(live.settings, tmp_path / "b", results=False, force=False)
        SelfSigned(live.settings.paths.tls, []).make()
        condition.measure(replace(live.settings, tls_self_signed=True), live.database)
        for name in ("queue_oldest", "last_backup"):
            assert began - 1 <= value(live, f"dlicmd_{name}_timestamp_seconds") <= time.time() + 1
        assert value(live, "dlicmd_certificate_expires_timestamp_seconds") > time.time() + 300 * 86400
    finally:
        live.close()
