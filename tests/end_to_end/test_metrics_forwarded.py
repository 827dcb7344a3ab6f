"""Metrics of a job reach their receiver although the server is killed while the job runs."""

from __future__ import annotations

import os
import signal

import pytest
from metrics_receiver import receiving
from support import eventually
from user import User

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


def test_no_metric_is_lost_when_the_server_is_killed(user: User) -> None:
    go = user.folder / "go"
    with receiving() as receiver:
        receiver.answers = [500, "cut"]
        exec_id = user.submit(
            "PyTorch", "--model-dir", str(user.model("m", main=PROGRAM)), "--model-main", "main.py", "--cs-url-meta",
            receiver.url, "--cs-url-bearer", "s3cret", "--", str(go),
        )
        eventually(lambda: receiver.taken, "the first metric arrives")
        os.kill(user.server_pid, signal.SIGKILL)
        go.touch()
        done = user.run("--wait", exec_id)
        assert done.code == 0, done
        eventually(lambda: {item["metric"]["etimes"]["iteration"]["value"] for item in receiver.taken} == {"1", "2"},
                   "both metrics arrive")
        assert len({(item["source"], item["offset"]) for item in receiver.taken}) == 2
        assert {headers["Authorization"] for headers in receiver.headers} == {"Bearer s3cret"}
    assert "s3cret" not in user.run("--exec-get", exec_id, "-o", "json").out
