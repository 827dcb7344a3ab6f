"""Metrics of a job reach a real RabbitMQ broker that is killed meanwhile. The job is not affected."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support import eventually
from user import User

if TYPE_CHECKING:
    from rabbit_server import Rabbit

pytestmark = pytest.mark.integration

PROGRAM = """
import os, sys, time
from emetrics import EMetrics
with EMetrics.open() as metrics:
    metrics.record(EMetrics.TRAIN_GROUP, 1, {"loss": 0.5})
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    metrics.record(EMetrics.TRAIN_GROUP, 2, {"loss": 0.25})
"""


def iteration(body: bytes) -> str:
    return str(json.loads(body)["etimes"]["iteration"]["value"])


def test_a_killed_broker_and_a_wrong_password_do_not_affect_the_jobs(user: User, broker: Rabbit) -> None:
    broker.declare("losses", "runs", "team.*")
    go = user.folder / "go"
    folder = str(user.model("m", main=PROGRAM))

    def submitted(password: str) -> str:
        place = f"host=127.0.0.1,port={broker.port},user=metrics,password={password},exchange=runs,routing_key=team.a"
        return user.submit("PyTorch", "--model-dir", folder, "--model-main", "main.py", "--cs-rmq-meta", place,
                           "--", str(go))

    exec_id, locked_out = submitted("br0ker-pw"), submitted("wr0ng-pw")
    found: list[Any] = []
    eventually(lambda: found.extend(broker.take("losses")) or found, "the first metric arrives")
    refused = "refuses the user or the password"
    eventually(lambda: refused in user.run("--exec-launcherlogs", locked_out).out, "the launcher log has the refusal")
    broker.kill()
    go.touch()
    for each in (exec_id, locked_out):
        done = user.run("--wait", each)
        assert done.code == 0, done
    broker.start()
    eventually(lambda: found.extend(broker.take("losses")) or len({one.message_id for one, _ in found}) == 2,
               "the second metric arrives when the broker runs again")
    assert {iteration(body) for _, body in found} == {"1", "2"}
    assert {one.headers["execId"] for one, _ in found} == {exec_id}
    for each in (exec_id, locked_out):
        shown = user.run("--exec-get", each, "-o", "json").out + user.run("--exec-launcherlogs", each).out
        assert "br0ker-pw" not in shown and "wr0ng-pw" not in shown
