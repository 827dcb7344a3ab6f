"""A search goes on after its server was stopped, with the next command of any kind."""

from __future__ import annotations

import json

import pytest
from support import eventually
from user import User

pytestmark = pytest.mark.integration

PROGRAM = """
import json, os, time
rate = json.load(open("config.json"))["rate"]
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
with open(os.environ["RESULT_DIR"] + "/val_dict_list.json", "w") as file:
    json.dump([{"loss": (rate - 0.3) ** 2}], file)
"""


def test_the_next_command_lets_a_search_go_on(user: User) -> None:
    folder, go = user.model("m", main=PROGRAM), user.folder / "go"
    asked = {
        "hpoName": "s", "modelSpec": {"args": f"--exec-start PyTorch --model-main main.py --msd-env GO={go}"},
        "algoDef": {"algorithm": "TPE", "maxJobNum": 5, "maxParalleJobNum": 2, "objectiveMetric": "loss",
                    "objective": "minimize", "algoParams": [{"name": "WarmUp", "value": "3"}]},
        "hyperParams": [{"name": "rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0, "maxDbVal": 1}],
    }
    (user.folder / "s.json").write_text(json.dumps(asked))
    started = user.run("--hpo-start", str(user.folder / "s.json"), "--model-dir", str(folder))
    assert started.code == 0, started
    eventually(lambda: json.loads(user.run("--hpo-get", "s", "-o", "json").out)["running"] == 2, "a batch runs")
    assert user.backend("stop").code == 0
    go.touch()
    assert user.run("--exec-get-all").code == 0  # starts a server
    shown = eventually(lambda: (one := json.loads(user.run("--hpo-get", "s", "-o", "json").out))["state"] == "FINISHED"
                       and one, "the search is over")
    assert [one["state"] for one in shown["experiments"]] == ["FINISHED"] * 5
    assert len({one["appId"] for one in shown["experiments"]}) == 5
