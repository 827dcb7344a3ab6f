"""Searches share 4 slots with other searches and jobs while they train, and their values do not depend on that."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support import eventually
from user import User

from dlicmd import Client
from dlicmd.sdk.transport import FilePart, Multipart

pytestmark = pytest.mark.integration

#: Trains slowly until there is a file with the number of its experiment, or `all`, in the folder GO; then fast.
TRAIN = """
import json, os, time
import torch
from torch import nn
from torch.utils.data import Dataset
from fabric_model import FabricModel

class Samples(Dataset):
    def __init__(self, size):
        self.size, self.fast = size, False

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if not self.fast:
            self.fast = any(os.path.exists(os.path.join(os.environ["GO"], name))
                            for name in (os.environ.get("SUBID", "job"), "all"))
            time.sleep(0 if self.fast else 0.4)
        return torch.randn(8) + i % 3, i % 3

params = json.load(open("config.json")) if os.path.exists("config.json") else {"rate": 0.1}
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=params["rate"])
FabricModel(model, lambda: (Samples(500), Samples(20)), nn.functional.cross_entropy, optimizer).train(
    int(params.get("epochs", 1)), 4, 4)
"""
RUNGS = {"algorithm": "Hyperband", "resume": True, "algoParams": [
    {"name": "RandomSeed", "value": "5"}, {"name": "ResourceName", "value": "epochs"},
    {"name": "ResourceValue", "value": "2"}, {"name": "eta", "value": "2"}]}
RANDOM = {"algorithm": "Random", "algoParams": [{"name": "RandomSeed", "value": "5"}]}


class Desk:
    """Submits searches and a job, and reads who has slots."""

    def __init__(self, user: User) -> None:
        user.environment["DLI_SLOTS"] = "4"
        assert user.run("--exec-get-all").code == 0
        self.folder = user.folder
        said = json.loads((user.home / "backend.json").read_text())
        port = int(said["url"].rpartition(":")[2].strip("/"))
        self.client = Client("127.0.0.1", port, http=True, token=said["token"])

    def words(self, name: str, user: str) -> str:
        (self.folder / name).mkdir(exist_ok=True)
        return (f"--exec-start edtPyTorch --numWorker 4 --model-main train.py --appName {name} --submit-user {user} "
                f"--msd-env GO={self.folder / name}")

    @staticmethod
    def _file() -> FilePart:
        content = TRAIN.encode()
        return FilePart("file", "train.py", io.BytesIO(content), len(content))

    def job(self, name: str, user: str) -> None:
        self.client.start_exec(self.words(name, user), Multipart([self._file()]))

    def search(self, name: str, user: str, count: int, algo: dict[str, Any]) -> None:
        """Start a search whose experiments all may run at the same time."""
        asked = {
            "hpoName": name, "modelSpec": {"args": self.words(name, user)},
            "algoDef": {"maxJobNum": count, "maxParalleJobNum": count, "objectiveMetric": "loss",
                        "objective": "minimize"} | algo,
            "hyperParams": [{"name": "rate", "type": "Range", "dataType": "DOUBLE", "minDbVal": 0.01, "maxDbVal": 0.2}],
        }
        self.client.start_search(Multipart([self._file()], [("data", json.dumps(asked))], None))

    def go(self, name: str, *which: object) -> None:
        for one in which or ("all",):
            (self.folder / name / str(one)).touch()

    def workers(self) -> dict[str, int]:
        """Return name of search or job → number of workers that train, if each of them holds one slot, and no
        more."""
        found: Counter[str] = Counter()
        for one in self.client.execs("state=RUNNING"):
            if one.get("workers", 0) != one.get("slots", 0):
                return {}
            found[one.get("search") or one["appName"]] += one.get("workers", 0)
        return {name: count for name, count in found.items() if count}

    def shares(self, **expected: int) -> None:
        eventually(lambda: self.workers() == expected, f"the slots are shared: {expected}")

    def table(self, name: str) -> list[Any]:
        """Wait for the end of a search, and return its experiments."""
        shown = eventually(lambda: (one := self.client.search(name))["state"] not in ("SUBMITTED", "RUNNING") and one,
                           f"{name} is over")
        assert shown["state"] == "FINISHED", shown
        return [(one["id"], one["hyperParams"], one["state"], one["metricVal"], one.get("rung"))
                for one in shown["experiments"]]


@pytest.fixture
def desk(warm: User) -> Iterator[Desk]:
    found = Desk(warm)
    with found.client:
        yield found


def test_a_search_is_one_consumer_among_the_users_and_among_the_jobs_of_its_user(desk: Desk) -> None:
    desk.search("one", "anna", 1, RANDOM)
    desk.shares(one=4)
    desk.search("many", "bert", 5, RANDOM)
    desk.shares(one=2, many=2)
    desk.job("job", "bert")
    desk.shares(one=2, many=1, job=1)
    desk.go("one")
    first = desk.table("one")
    desk.shares(many=2, job=2)
    desk.go("job")
    desk.shares(many=4)
    desk.go("many")
    shared = desk.table("many")
    desk.search("again", "anna", 5, RANDOM)
    desk.go("again")
    assert desk.table("again") == shared
    assert first == shared[:1]


def test_the_experiments_that_remain_get_the_slots_of_those_that_rest_or_have_ended(desk: Desk) -> None:
    desk.search("rungs", "anna", 4, RUNGS)
    desk.shares(rungs=4)
    desk.go("rungs", 1)
    survivor = _exec_of(desk, "rungs", 0)
    eventually(lambda: desk.client.search("rungs")["experiments"][1]["state"] == "WAITING", "an experiment rests")
    eventually(lambda: desk.client.exec(survivor).get("workers") == 4, "the other one has all slots")
    desk.go("rungs")
    grown = desk.table("rungs")
    desk.search("again", "anna", 4, RUNGS)
    desk.go("again")
    assert desk.table("again") == grown


def _exec_of(desk: Desk, name: str, number: int) -> str:
    return str(desk.client.search(name)["experiments"][number]["appId"])
