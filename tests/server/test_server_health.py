"""Health, readiness and metrics of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from live_server import Live, settings_for
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.api import health
from local_backend.runtime.local_launcher import LocalLauncher
from local_backend.runtime.supervisor import Supervisor
from local_backend.scheduler.slots import cpu_slots
from local_backend.services import readiness
from local_backend.services.readiness import Readiness
from local_backend.store import events
from local_backend.store.database import Database


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("health") / "home"))
    yield running
    running.close()


@pytest.fixture(autouse=True)
def _present(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of /metrics computes them."""
    monkeypatch.setattr(health, "SHARED_SECONDS", 0.0)


def ask(live: Live, path: str, **more: object) -> tuple[int, str]:
    answer = live.call("GET", path, base="", **{"token": None, **more})  # type: ignore[arg-type]
    return answer.status, answer.text


def samples(live: Live) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample of /metrics, by name and labels."""
    answer = live.call("GET", wire.METRICS, base="")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text) for sample in family.samples
    }


def value(live: Live, name: str, **labels: str) -> float:
    return samples(live).get((name, frozenset(labels.items())), 0.0)


def test_calls_within_a_second_share_the_metrics(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.submitted()
    first = samples(live)
    monkeypatch.setattr(health, "SHARED_SECONDS", 3600.0)
    live.submitted()
    counted = samples(live)
    live.submitted()
    assert samples(live) == counted != first


def test_the_health_check_answers_ok(home: Live) -> None:
    assert ask(home, wire.HEALTH) == (200, "ok\n") and ask(home, wire.HEALTH + "/") == (200, "ok\n")
    assert ask(home, wire.HEALTH, headers={"Host": "evil.example"})[0] == 403
    assert home.call("POST", wire.HEALTH, base="", token=None).status == 405


def test_the_server_is_ready_until_a_part_fails(home: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_NEW", 0.0)
    assert ask(home, wire.READY) == (200, "ready\n")

    home.supervisor.rounds = False
    assert ask(home, wire.READY) == (503, "Error 503: the scheduler does not respond.\n")
    home.supervisor.rounds = True

    def full(_: object) -> None:
        raise OperationalError("INSERT", {"secret": "value"}, Exception("database or disk is full"))

    with monkeypatch.context() as broken:
        broken.setattr(home.services.base.database, "write", full)
        assert ask(home, wire.READY) == (503, "Error 503: cannot write to the database.\n")
    assert ask(home, wire.READY)[0] == 200

    home.services.machine.closing = True
    assert ask(home, wire.READY)[0] == 503
    home.services.machine.closing = False


def test_the_server_is_not_ready_with_too_little_disk_space(home: Live) -> None:
    settings = settings_for(home.settings.home, ready_free_bytes=2**60)
    found = Readiness(settings, home.database, home.supervisor.completes_turn).troubles()
    assert len(found) == 2 and "minimum" in found[0] and str(home.settings.home) not in "".join(found)


def test_a_hanging_check_is_reported_and_does_not_block_other_calls(
    home: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_NEW", 0.0)
    monkeypatch.setattr(readiness, "_PATIENCE", 0.05)
    release = threading.Event()
    one = Readiness(home.settings, home.database, lambda _: release.wait())
    assert one.troubles() == one.troubles() == ["the database or a disk does not respond"]
    assert sum(thread.name == "readiness" and thread.is_alive() for thread in threading.enumerate()) == 1
    release.set()
    eventually(lambda: one.troubles() == [], "the check ends")


def test_a_supervisor_with_failing_turns_completes_no_turn(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for(tmp_path / "home", nursery_idle=0.0, slots=1)
    settings.paths.jobs.mkdir(parents=True)
    database = Database(settings.paths.database)
    database.open()
    supervisor = Supervisor(settings, database, LocalLauncher(settings))
    try:
        assert not supervisor.completes_turn(0.01)  # The supervisor is not started yet.
        supervisor.start()
        assert supervisor.completes_turn(60.0)
        failing = threading.Event()

        def fail() -> None:
            failing.set()
            raise ZeroDivisionError

        monkeypatch.setattr(supervisor._control, "turn", fail)
        supervisor.wake()
        assert failing.wait(60)  # Earlier turns have ended.
        assert not supervisor.completes_turn(0.01)
    finally:
        supervisor.close()
        database.close()


def test_metrics_count_slots_execs_and_the_queue(home: Live) -> None:
    assert len(cpu_slots(2)) == 2 and value(home, "dlicmd_slots", kind="cpu", state="free") == 2
    accepted = value(home, "dlicmd_submissions_total", outcome="accepted")
    refused = value(home, "dlicmd_submissions_total", outcome="refused")
    before = samples(home)
    ids = [home.submitted() for _ in range(3)]
    home.submit("--exec-start Nothing")
    home.run_on(ids[0], "cpu-0")
    home.move(ids[1], PENDING)
    seen = samples(home)
    grown = {sample: seen[sample] - before[sample] for sample in (
        ("dlicmd_execs", frozenset({("state", RUNNING)})), ("dlicmd_queue_length", frozenset()),
        ("dlicmd_execs", frozenset({("state", FINISHED)})))}
    assert list(grown.values()) == [1, 2, 0]
    assert value(home, "dlicmd_submissions_total", outcome="accepted") == accepted + 3
    assert value(home, "dlicmd_submissions_total", outcome="refused") == refused + 1
    assert ("dlicmd_scheduling_decision_seconds_count", frozenset()) in seen
    assert ("process_resident_memory_bytes", frozenset()) in seen


def test_metrics_show_running_loops(home: Live) -> None:
    seen = samples(home)
    assert not [name for name, _ in seen if name.startswith("dlicmd_loop_")], "metrics of a loop that is not started"
    home.services.housekeeper.start()
    try:
        assert home.services.housekeeper.loop.completes_turn(60.0)
        assert value(home, "dlicmd_loop_busy_seconds", loop="housekeeping") < 60
        assert ("dlicmd_loop_failures", frozenset({("loop", "housekeeping")})) in samples(home)
    finally:
        home.services.housekeeper.close()


def test_the_housekeeper_deletes_old_events(home: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    exec_id = home.submitted()
    home.move(exec_id, PENDING)
    monkeypatch.setattr(events, "MOST", 1)
    home.services.housekeeper.round()
    (left,) = home.database.read(lambda c: events.since(c, 0))
    assert (left.exec_id, left.data) == (exec_id, {"state": PENDING})


def test_requests_are_counted_by_route_and_not_by_path(home: Live) -> None:
    def count(status: str, method: str = "GET", route: str = "(none)") -> float:
        return value(home, "dlicmd_http_requests_total", method=method, route=route, status=status)

    route = f"{wire.EXECS}/{{exec_id}}"
    before = count("400", route=route)
    series = len(samples(home))
    for number in range(5):
        home.call("GET", f"/execs/local-{900 + number}")
    # A request is counted when it is over, a moment after its response.
    eventually(lambda: count("400", route=route) == before + 5, "the server counts 5 requests")
    grown = len(samples(home))
    for number in range(20):
        home.call(f"BREW{number}", f"/nothing/{number}")
        home.call("GET", f"/execs/local-{number}", token="wrong")
        home.call("GET", f"/nothing/{number}", headers={"Host": f"evil{number}.example"})
    eventually(lambda: count("404", method="OTHER") >= 20, "the server counts requests with unknown methods")
    eventually(lambda: count("401") >= 20, "the server counts requests with a wrong token")
    eventually(lambda: count("403") >= 20, "the server counts requests for other hosts")
    assert grown < series + 20 and len(samples(home)) < grown + 20


def test_metrics_need_a_token_unless_a_setting_opens_them(home: Live, start) -> None:
    assert ask(home, wire.METRICS)[0] == 401
    opened = start(open_metrics=True)
    assert ask(opened, wire.METRICS)[0] == 200 and ask(opened, wire.STATUS)[0] == 401
