"""`--msd-attr verify=N`: the first steps run with two numbers of workers, and a report gives the result."""

import json
import math

import pytest
from fake_runner import FakeRunner
from hypothesis import given
from hypothesis import strategies as st
from scripts import alone, lay_out

from local_backend.elastic.driver.hub_server import Observed
from local_backend.elastic.driver.options import Options, TrainingRequest
from local_backend.elastic.driver.verification import Check, Rehearsal, RehearsalFinished
from local_backend.elastic.errors import EngineError
from local_backend.elastic.hub.events import BatchResult, Begin, Commit
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.worker.agreement import Row, StateTable

#: With the argument "wrong", the loss depends on the process that computes it. With "late", the driver ends a rehearsal
#: only when its workers have trained the last epoch.
SCRIPT = '''
import hashlib, os, sys
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from callbacks import Callback
from fabric_model import FabricModel

result = os.environ["RESULT_DIR"]


class Watch(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        if save_model:
            with open(os.path.join(result, "saved"), "a") as file:
                file.write("x")


class Loss(torch.nn.Module):
    """Depends on the process."""

    def forward(self, outputs, labels):
        return F.cross_entropy(outputs, labels) * (1 + os.getpid() if "wrong" in sys.argv else 1)


def datasets():
    x = torch.arange(80.0).view(20, 4) / 80
    return TensorDataset(x, torch.arange(20) % 3), TensorDataset(x, torch.arange(20) % 3)


if "late" in sys.argv:
    from local_backend.elastic.driver.verification import Rehearsal

    Rehearsal.complete = property(lambda self: self.ends_early is False and len(self.tables) >= self.steps)

torch.manual_seed(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
stop = {"patience": 1, "min_delta": 100.0} if "stop" in sys.argv else None
training = FabricModel(model, datasets, Loss(), optimizer, user_callback=[Watch()], early_stopping=stop)
training.train(5 if stop else 2, 2, 4)
print("weights", hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
'''


def run(folder, workers, *arguments, **attributes):
    runner = FakeRunner(folder, workers)
    runner.attributes = attributes
    return runner.run(lay_out(folder, SCRIPT), *arguments)


def weights(ended):
    return [line for line in ended.stdout.splitlines() if line.startswith("weights")]


@pytest.mark.parametrize(("workers", "counts"), [
    pytest.param(3, "1 and 3", marks=pytest.mark.integration), (1, "2 and 1"),
])
def test_a_passed_verification_is_reported_and_changes_nothing(tmp_path, workers, counts):
    ended = run(tmp_path / "verified", workers, verify="4")
    assert ended.returncode == 0, ended.stderr
    report = f"verified: the first 4 steps gave the same bits with {counts} workers"
    assert ended.stdout.splitlines().count(report) == 1
    assert report in [message["text"] for message in ended.of("history")]
    plain = alone(tmp_path / "plain", lay_out(tmp_path / "plain", SCRIPT))
    assert weights(ended) == weights(plain)
    assert len(weights(ended)) == 1
    result = tmp_path / "verified" / "result"
    assert (result / "saved").read_text() == "x", "the rehearsal saved files"
    found = json.loads((result / "model" / "train" / "manifest.json").read_text())["verified"]
    assert found == {"held": True, "steps": 4, "workers": [[int(n)] for n in counts.split(" and ")], "report": report}


def test_a_rehearsal_that_reaches_the_last_epoch_saves_nothing(tmp_path):
    ended = run(tmp_path, 1, "late", verify="4")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "result" / "saved").read_text() == "x"


def test_a_failed_verification_ends_the_job_and_names_the_step(tmp_path):
    ended = run(tmp_path, 2, "wrong", verify="3")
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "verification failed: with 1 and 2 workers" in last
    assert "step 1" in last
    assert "Likely cause" in last
    assert weights(ended) == []


def test_verify_only_ends_the_job_after_these_steps(tmp_path):
    ended = run(tmp_path, 2, verify_only="2")
    assert ended.returncode == 0, ended.stderr
    assert "verified: the first 2 steps gave the same bits with 1 and 2 workers" in ended.stdout
    assert weights(ended) == []
    assert not (tmp_path / "result" / "model").exists()


def test_a_training_that_stops_early_within_these_steps_is_verified(tmp_path):
    ended = run(tmp_path, 2, "stop", verify_only="20")
    assert ended.returncode == 0, ended.stderr
    assert "gave the same bits with 1 and 2 workers" in ended.stdout
    assert "Error" not in ended.stderr


@pytest.mark.parametrize("name", ["verify", "verify_only"])
@pytest.mark.parametrize("value", ["0", "1.5", "many"])
def test_the_number_of_steps_is_checked(name, value):
    with pytest.raises(ValueError, match=f"the attribute {name} must be a number of steps, whole and above 0"):
        Options.of({name: value}, TrainingRequest(None, None, 1, 1, 0))


def test_verify_is_refused_in_asynchronous_mode():
    with pytest.raises(ValueError, match="verify needs mode exact or fast"):
        Options.of({"verify": "3"}, TrainingRequest(None, None, 1, 1, 0, mode="async"))


# --- comparisons without workers

PLAN = StepPlan(16, 2, 4, 2, 0)


def feed(watch, losses, weights, members):
    """Feed a training whose steps have these losses of two batches, and these weights."""
    watch.heard(Begin(PLAN), members)
    for step, (loss, weight) in enumerate(zip(losses, weights, strict=True)):
        epoch, within = divmod(step, PLAN.steps_per_epoch)
        watch.observed(Observed(1, step, members, StateTable((Row("parameter", "w", weight),)).to_bytes()))
        results = tuple(BatchResult(shard, 2, value, 1) for shard, value in enumerate(loss))
        watch.heard(Commit(epoch, within, results), members)


def rehearsed(losses, weights):
    rehearsal = Rehearsal(len(losses))
    with pytest.raises(RehearsalFinished):
        feed(rehearsal, losses, weights, 1)
    return rehearsal


LOSSES = st.sampled_from([0.5, 0.25, math.nan, 0.5 * (1 + 1e-6)])
STEPS = st.lists(st.tuples(st.tuples(LOSSES, LOSSES), st.integers(0, 2)), min_size=1, max_size=7)


@given(STEPS, st.data())
def test_all_differences_and_only_differences_fail_the_verification(first, data):
    second = data.draw(st.just(first) | st.lists(st.sampled_from(first), min_size=len(first), max_size=len(first)))
    said = []
    check = Check(7, rehearsed=rehearsed(*zip(*first, strict=True)), say=said.append)
    check.wanted = len(first)
    if repr(first) == repr(second):
        feed(check, *zip(*second, strict=True), 2)
        assert check.held
        assert said == [f"verified: the first {len(first)} steps gave the same bits with 1 and 2 workers"]
    else:
        with pytest.raises(EngineError, match="verification failed: with 1 and 2 workers"):
            feed(check, *zip(*second, strict=True), 2)
        assert not check.held
        assert said[0].startswith("not verified: with 1 and 2 workers")


def test_rounding_is_no_difference_in_fast_mode():
    said = []
    before = rehearsed([(0.5, 0.25)], [1])
    check = Check(1, rehearsed=before, exact=False, say=said.append)
    feed(check, [(0.5 * (1 + 1e-6), 0.25)], [2], 2)
    assert said == [
        "verified: the losses of the first 1 steps agree within rounding with 1 and 2 workers "
        "(largest relative difference 1.0e-06)"
    ]
    with pytest.raises(EngineError, match="batch 2 of step 1 differs"):
        feed(Check(1, rehearsed=before, exact=False, say=said.append), [(0.5, 0.35)], [2], 2)


def test_the_same_number_of_workers_verifies_nothing():
    said = []
    check = Check(1, rehearsed=rehearsed([(0.5, 0.25)], [1]), say=said.append)
    feed(check, [(0.5, 0.25)], [1], 1)
    assert said == ["not verified: the first 1 steps ran with 1 worker both times"]
    assert not check.held
