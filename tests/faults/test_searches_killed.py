"""SIGKILL of the server at any moment of a search: no experiment runs twice, none is forgotten, and the table of
experiments is that of an undisturbed search."""

from __future__ import annotations

import io
import json
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loaded_server import Server
from support import PATIENCE, VOLUME, eventually

from dlicmd import Client
from dlicmd.sdk.transport import FilePart, Multipart

pytestmark = pytest.mark.integration

#: Experiments of each search. Kills strike while they are created.
COUNT = 12 if VOLUME > 1 else 6
SEARCHES = {
    "Random": {"RandomSeed": "5"},
    "TPE": {"RandomSeed": "5", "WarmUp": "3"},
    "Hyperband": {"RandomSeed": "5", "ResourceName": "epochs", "ResourceValue": "4", "eta": "2"},
}
#: Appends its experiment and exec to a file, which shows every run of every experiment.
PROGRAM = """
import json, os, sys, time
rate = json.load(open("config.json"))["rate"]
with open(sys.argv[1], "a") as file:
    file.write(os.environ["SUBID"] + " " + os.environ["DLI_EXECID"] + "\\n")
time.sleep(0.2)
with open(os.environ["RESULT_DIR"] + "/val_dict_list.json", "w") as file:
    json.dump([{"loss": (rate - 0.3) ** 2}], file)
"""


def body(name: str, log: Path, algorithm: str, params: dict[str, str]) -> Multipart:
    asked = {
        "hpoName": name, "modelSpec": {"args": f"--exec-start PyTorch --model-main main.py {log}"},
        "algoDef": {"algorithm": algorithm, "maxJobNum": COUNT, "maxParalleJobNum": 3, "objectiveMetric": "loss",
                    "objective": "minimize",
                    "algoParams": [{"name": key, "value": value} for key, value in params.items()]},
        "hyperParams": [{"name": "rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0, "maxDbVal": 1}],
    }
    content = PROGRAM.encode()
    return Multipart([FilePart("file", "main.py", io.BytesIO(content), len(content))],
                     [("data", json.dumps(asked))], None)


def table(shown: dict[str, Any]) -> list[Any]:
    return [(one["id"], one["state"], one["metricVal"], one["hyperParams"]) for one in shown["experiments"]]


def over(client: Client, name: str) -> dict[str, Any] | None:
    shown = dict(client.search(name))
    return shown if shown["state"] not in ("SUBMITTED", "RUNNING") else None


def test_a_killed_server_changes_nothing(tmp_path: Path) -> None:
    tables = {}
    for name, kills in (("calm", 0), ("killed", 6 * VOLUME)):
        with Server(tmp_path / f"home-{name}", DLI_SLOTS="3", DLI_NURSERY_IDLE="0") as server:
            logs = {algorithm: tmp_path / f"{name}-{algorithm}" for algorithm in SEARCHES}
            with server.client() as client:
                for algorithm, log in logs.items():
                    client.start_search(body(algorithm, log, algorithm, SEARCHES[algorithm]))
            disturb(server, kills)
            with server.client() as client:
                shown = {algorithm: eventually(partial(over, client, algorithm), f"{algorithm} is over", 4 * PATIENCE)
                         for algorithm in SEARCHES}
                jobs = [one["id"] for one in client.execs()]
        for algorithm, log in logs.items():
            assert shown[algorithm]["state"] == "FINISHED"
            runs = [tuple(line.split()) for line in log.read_text().splitlines()]
            assert Counter(runs).most_common(1)[0][1] == 1  # no exec ran twice
            assert sorted(int(number) for number, _ in runs) == [one["id"] for one in shown[algorithm]["experiments"]]
        assert sorted(jobs) == sorted(one["appId"] for search in shown.values() for one in search["experiments"])
        tables[name] = {algorithm: table(search) for algorithm, search in shown.items()}
    assert tables["calm"] == tables["killed"]
    assert {algorithm: len(rows) for algorithm, rows in tables["calm"].items()} == dict.fromkeys(SEARCHES, COUNT)


def disturb(server: Server, kills: int) -> None:
    """Kill the server `kills` times. The times of the kills are what varies in this test."""
    chance = random.Random(5)
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 0.8))
        server.kill()
        server.start()
