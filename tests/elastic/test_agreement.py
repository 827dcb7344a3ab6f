"""Workers with different states end the job, and the error names the difference. Harmless differences are ignored."""

import pytest
from fake_runner import FakeRunner
from hypothesis import given
from hypothesis import strategies as st
from scripts import lay_out

from local_backend.elastic.worker.agreement import CAUSES, Row, StateTable, first_difference

#: One training with several errors that a script may make, and some harmless differences.
SCRIPT = '''
import os, sys, threading, time, uuid
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from callbacks import Callback
from fabric_model import FabricModel

wrong = sys.argv[1]


class Ema:
    def __init__(self):
        self.count, self.seen, self.shadow = 0, 0.0, [torch.zeros(3)]


class Watch(Callback):
    def __init__(self):
        self.began, self.tensor = time.time(), torch.zeros(2)

    def on_train_begin(self):
        self.lock = threading.Lock()

    def on_epoch_begin(self, epoch):
        number = int(os.environ["DLI_WORKER_NUMBER"])
        self.epoch_began, self.pid, self.run = time.time(), os.getpid(), uuid.uuid4().hex
        self.first, self.times = number == 1, [time.time()]
        ema.count += 1
        if wrong == "state" and epoch == 1:
            ema.shadow[0] += number

    def on_epoch_end(self, epoch):
        number = int(os.environ["DLI_WORKER_NUMBER"])
        self.durations = np.array([time.time() - self.epoch_began])
        ema.seen = time.time()
        if wrong == "rate" and epoch == 1:
            for group in self.params["optimizer"].param_groups:
                group["lr"] = 0.1 * number
        if wrong == "parameter" and epoch == 1:
            with torch.no_grad():
                self.model[2].weight += number
        if wrong == "tensor":
            self.tensor += number
        if wrong == "frozen" and number == 2:
            self.model[0].bias.requires_grad_(False)


def datasets():
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(24, 4, generator=g), torch.arange(24) % 3)
    return data, data


torch.manual_seed(3)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
ema = Ema()
FabricModel(model, datasets, F.cross_entropy, optimizer, user_callback=[Watch()], state={"ema": ema},
            local_state=["Watch.durations", "ema.seen"]).train(
    2, 4, 2, check="strict" if wrong == "state" else "epoch")
print("count", ema.count)
'''


def train(tmp_path, wrong):
    return FakeRunner(tmp_path, 2).run(lay_out(tmp_path, SCRIPT), wrong)


@pytest.mark.integration
def test_clocks_process_ids_and_locks_of_callbacks_are_ignored(tmp_path):
    ended = train(tmp_path, "nothing")
    assert ended.returncode == 0, ended.stderr
    assert "count 2" in ended.stdout


@pytest.mark.integration
@pytest.mark.parametrize(("wrong", "words"), [
    ("rate", (
        "after step 6", "learning rate of group 0 differs (0.1 and 0.2)", "last equal after step 3", CAUSES["rate"],
    )),
    ("parameter", ("after step 6", "parameter 2.weight differs", "last equal after step 3", CAUSES["parameter"])),
    ("state", ("after step 4", "state ema.shadow[0] differs", "last equal after step 3", CAUSES["state"])),
    ("tensor", ("after step 3", "callback Watch.tensor differs", "last equal when training began")),
    ("frozen", ("after step 3", "the set of frozen parameters differs (none and 0.bias)", CAUSES["frozen"])),
])
def test_a_difference_between_workers_ends_the_job_and_is_named(tmp_path, wrong, words):
    ended = train(tmp_path, wrong)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last
    assert not list((tmp_path / "result").rglob("model_epoch_final.pth")), "a state that differs was saved"


@pytest.mark.integration
def test_a_worker_that_dies_while_states_are_compared_is_replaced(trouble, unharmed):
    training = trouble(2)
    training.suffer("agreeing:2:5:kill")
    training.wait(lambda: training.spawned() == 3, "a worker instead of the dead one")
    training.wait_or_end(lambda: training.status.get("workers") == 2)
    training.finish()
    training.check(unharmed(training.recipe), {2: -9}, 2)


ROWS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), min_size=1)


def table(values):
    return StateTable(tuple(Row("parameter", name, value, str(value)) for name, value in values.items()))


@given(st.lists(ROWS, min_size=2, max_size=4))
def test_the_first_difference_is_in_the_first_table_that_differs(all_values):
    tables = [StateTable.from_bytes(table(values).to_bytes()) for values in all_values]
    found = first_difference(tables)
    different = [place for place, values in enumerate(all_values) if values != all_values[0]]
    assert (found is None) == (not different)
    if found is not None:
        assert found.place == different[0]
        first, second = all_values[0], all_values[found.place]
        assert first.get(found.name) != second.get(found.name)
        changed = {name for name in {**first, **second} if first.get(name) != second.get(name)}
        assert found.others == len(changed) - 1
        assert [found.here, found.there] == [str(one.get(found.name, "absent")) for one in (first, second)]


@given(ROWS, ROWS)
def test_digests_are_equal_exactly_if_tables_are_equal(a, b):
    assert (table(a).digest == table(b).digest) == (list(a.items()) == list(b.items()))
    assert -(1 << 63) <= table(a).digest < 1 << 63
