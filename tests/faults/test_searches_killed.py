"""SIGKILL of the server at any moment of a search: no experiment runs twice, none is forgotten, and the table of
experiments is that of an undisturbed search."""

from __future__ import annotations

import io
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loaded_server import Server
from support import VOLUME, eventually

from dlicmd import Client
from dlicmd.sdk.transport import FilePart, Multipart

pytestmark = pytest.mark.integration

COUNT = 12
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


@pytest.mark.parametrize(("algorithm", "params"), [
    ("Random", {"RandomSeed": "5"}),
    ("TPE", {"RandomSeed": "5", "WarmUp": "3"}),
    ("Hyperband", {"RandomSeed": "5", "ResourceName": "epochs", "ResourceValue": "4", "eta": "2"}),
])
def test_a_killed_server_changes_nothing(tmp_path: Path, algorithm: str, params: dict[str, str]) -> None:
    chance = random.Random(algorithm)
    tables = []
    for name, kills in (("calm", 0), ("killed", 8 * VOLUME)):
        log = tmp_path / name
        with Server(tmp_path / f"home-{name}", DLI_SLOTS="3", DLI_NURSERY_IDLE="0") as server:
            with server.client() as client:
                client.start_search(body("s", log, algorithm, params))
            for _ in range(kills):
                time.sleep(chance.uniform(0.0, 0.8))
                server.kill()
                server.start()
            with server.client() as client:
                shown = eventually(lambda: over(client, "s"), "the search is over")
                assert shown["state"] == "FINISHED"
                jobs = [one["id"] for one in client.execs()]
            tables.append(table(shown))
            runs = [tuple(line.split()) for line in log.read_text().splitlines()]
            assert Counter(runs).most_common(1)[0][1] == 1  # no exec ran twice
            assert sorted(int(number) for number, _ in runs) == [one["id"] for one in shown["experiments"]]
            assert sorted(jobs) == sorted(one["appId"] for one in shown["experiments"])
    assert tables[0] == tables[1] and len(tables[0]) == COUNT
