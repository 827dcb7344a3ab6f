"""The asynchronous mode: members take local steps and average their parameters, while workers join, leave and die."""

import copy
import math
import threading

import pytest
import torch
from callbacks import Callback
from churn import Training
from fabric_model import FabricModel
from hypothesis import given
from hypothesis import strategies as st
from thread_group import Board, ThreadGroup
from torch import nn

from local_backend.elastic.collective.layout import Layout
from local_backend.elastic.collective.local_sgd import LocalSteps, Window
from local_backend.elastic.collective.reduce import make_reducer
from local_backend.elastic.driver.options import Options, TrainingRequest
from local_backend.elastic.plan import split
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.worker.trainer import shares


class Mixed(nn.Module):
    """A model with statistics, counters, a constant that is not finite, an unused parameter and a frozen one."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.used = nn.Linear(5, 3)
        self.never = nn.Linear(5, 3)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.register_buffer("constant", torch.tensor([0.1, float("-inf"), 3.3]))

    def forward(self, x):
        return self.used(self.norm(self.frozen(x)))


def fresh():
    """Return a new model, always the same. Members in threads call this at the same time."""
    return copy.deepcopy(ORIGINAL)


with torch.random.fork_rng():
    torch.manual_seed(0)
    ORIGINAL = Mixed()

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.AdamW(p, 0.01),
}


class Member:
    """One member with its own training."""

    def __init__(self, window: Window, shards: int, optimizer: str = "sgd", group: ThreadGroup | None = None) -> None:
        model = fresh()
        self.job = TrainingJob(model, tuple, nn.functional.mse_loss, OPTIMIZERS[optimizer](model.parameters()), 1, 4)
        self.model, self.shards, self.group = model, shards, group
        self.local = LocalSteps(self.job, window, shards)
        self.steps = 0
        self.job.optimizer.register_step_pre_hook(self._count)
        self.enter()

    def _count(self, *_):
        self.steps += 1

    def enter(self) -> None:
        """Begin a generation."""
        self.layout = Layout(self.job.modules, self.job.optimizer)
        self.reducer = make_reducer("async", self.layout, self.group, self.local)

    def compute(self, number: int, active: int | None = None) -> None:
        """Compute this member's shards of a window."""
        active = self.shards if active is None else active
        size = 1 if self.group is None else self.group.size
        ranges = shares(split(self.shards, size), self.shards, active)
        mine = range(*ranges[0 if self.group is None else self.group.rank])
        self.step = self.reducer.begin_step(ranges, active, mine)
        for shard in mine:
            self.step.begin_shard(shard)
            self.step.backward(shard, self.loss(number, shard), 1 / active)
            self.step.end_shard(shard, 1 / active)

    def loss(self, number: int, shard: int) -> torch.Tensor:
        return batch_loss(self.model, number, shard)

    def window(self, number: int, active: int | None = None, word: int = 0) -> list[int]:
        """Train a whole window and return the words of all members."""
        self.compute(number, active)
        words = self.step.finish(word)
        self.job.outer.step()
        return words

    def values(self) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in [*self.model.parameters(), *self.model.buffers()]]


def batch_loss(model, number, shard):
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1000 * number + shard))
    return (model(x) - x[:, :3]).square().mean()


def together(size, work):
    """Run `work(group)` on each of `size` members in threads and return the results."""
    board, results, failures = Board(size), [None] * size, []

    def run(rank):
        try:
            results[rank] = work(ThreadGroup(rank, board))
        except BaseException as error:
            failures.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_member_alone_trains_like_ordinary_pytorch(optimizer):
    member, model = Member(Window(3), 6, optimizer), fresh()
    ordinary = OPTIMIZERS[optimizer](model.parameters())
    for number in range(4):
        member.window(number)
        for step in range(3):
            ordinary.zero_grad()
            for shard in (2 * step, 2 * step + 1):
                (batch_loss(model, number, shard) / 2).backward()
            ordinary.step()
    torch.testing.assert_close(member.values(), [*model.parameters(), *model.buffers()])


def test_members_average_their_progress_weighted_by_samples():
    def work(group):
        member = Member(Window(2), 5, group=group)
        words = member.window(0, word=70000 + group.rank)
        return member.values(), words, member.steps

    expected, parts = fresh(), []
    for first, last in split(5, 2):
        model = fresh()
        ordinary = OPTIMIZERS["sgd"](model.parameters())
        middle = (last - first) // 2
        for shards in (range(first, first + middle), range(first + middle, last)):
            ordinary.zero_grad()
            for shard in shards:
                (batch_loss(model, 0, shard) / len(shards)).backward()
            ordinary.step()
        parts.append((model, (last - first) / 5))
    with torch.no_grad():
        states = [[*model.parameters(), *model.buffers()] for model in (expected, parts[0][0], parts[1][0])]
        for mean, one, other in zip(*states, strict=True):
            if mean.is_floating_point() and mean.isfinite().all():
                mean.copy_(one * parts[0][1] + other * parts[1][1])
    expected.norm.num_batches_tracked += 3

    results = together(2, work)
    for values, words, steps in results:
        torch.testing.assert_close(values, [*expected.parameters(), *expected.buffers()])
        assert words == [70000, 70001]
        assert steps == 2
    for one, other in zip(results[0][0], results[1][0], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("workers", "active"), [(1, 12), (2, 12), (3, 12), (4, 12), (3, 7), (3, 1)])
def test_the_number_of_local_steps_does_not_depend_on_the_workers(workers, active):
    def work(group):
        member = Member(Window(3), 12, group=group)
        member.window(0, active)
        return member.steps, member.values()

    results = together(workers, work)
    whole = math.ceil(active * 3 / 12)
    shards = [last - first for first, last in shares(split(12, workers), 12, active)]
    assert [steps for steps, _ in results] == [min(whole, count) for count in shards]
    for _, values in results:
        for one, other in zip(values, results[0][1], strict=True):
            assert torch.equal(one, other)


@given(st.data())
def test_shares_of_a_partial_step_keep_their_proportions(data):
    shards = data.draw(st.integers(1, 60))
    active = data.draw(st.integers(1, shards))
    cuts = sorted(data.draw(st.lists(st.integers(0, shards), max_size=5)))
    ranges = list(zip([0, *cuts], [*cuts, shards], strict=True))
    parts = shares(ranges, shards, active)
    assert [shard for first, last in parts for shard in range(first, last)] == list(range(active))
    for (first, last), (low, high) in zip(ranges, parts, strict=True):
        assert abs((high - low) - (last - first) * active / shards) < 1
    assert shares(ranges, shards, shards) == tuple(ranges)


def test_outer_momentum_equals_sgd_and_is_part_of_the_state():
    window = Window(2, learning_rate=0.7, momentum=0.9)
    member, twin, ordinary = Member(window, 4), Member(window, 4), Member(Window(2), 4)
    anchor = fresh()
    outer = torch.optim.SGD(anchor.parameters(), 0.7, momentum=0.9, nesterov=True)
    for number in range(3):
        with torch.no_grad():
            for ours, theirs in zip(ordinary.model.parameters(), anchor.parameters(), strict=True):
                ours.copy_(theirs)
        ordinary.enter()
        ordinary.window(number)
        for ours, theirs in zip(ordinary.model.parameters(), anchor.parameters(), strict=True):
            theirs.grad = None if not theirs.requires_grad else (theirs - ours).detach()
        outer.step()
        member.window(number)
    torch.testing.assert_close(list(member.model.parameters()), list(anchor.parameters()))

    state = Replica(member.job).capture()
    Replica(twin.job).restore(Replica.copy(state))
    twin.enter()
    assert Replica(twin.job).digest() == Replica(member.job).digest()
    member.window(3)
    twin.window(3)
    assert Replica(twin.job).digest() == Replica(member.job).digest()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 2])
def test_an_interrupted_window_leaves_no_trace(optimizer, before):
    member, twin = Member(Window(2), 4, optimizer), Member(Window(2), 4, optimizer)
    for number in range(before):
        member.window(number)
        twin.window(number)
    digest = Replica(member.job).digest(member.layout.committed)
    member.compute(before)
    assert Replica(member.job).digest() != digest, "the window changed nothing that undo could restore"
    member.job.optimizer.param_groups[0]["lr"] = 7.0
    member.step.undo()
    assert Replica(member.job).digest() == digest
    member.enter()
    member.window(before)
    twin.window(before)
    assert Replica(member.job).digest() == Replica(twin.job).digest()


def test_a_parameter_that_is_added_later_has_an_outer_step_too():
    member = Member(Window(1), 2)
    extra = nn.Parameter(torch.ones(3))
    member.job.optimizer.add_param_group({"params": [extra]})
    member.enter()
    used = copy.copy(member)
    used.loss = lambda number, shard: batch_loss(member.model, number, shard) + extra.sum()
    used.window(0)
    torch.testing.assert_close(extra.detach(), torch.full((3,), 1 - 0.05 * 1.01))


REQUEST = TrainingRequest(engines=None, effective_batch=None, validation_freq=1, checkpoint_freq=1, seed=1)


def test_attributes_of_windows_are_checked():
    assert Options.of({"mode": "async"}, REQUEST).window == 8
    chosen = Options.of({"mode": "async", "window": "3", "outer_lr": "0.7", "outer_momentum": "0.9"}, REQUEST)
    assert (chosen.window, chosen.outer_lr, chosen.outer_momentum) == (3, 0.7, 0.9)
    assert Options.of({"mode": "exact", "window": "3"}, REQUEST).window == 1
    for name, values in {
        "window": ("0", "1.5", "-2", "x"), "outer_lr": ("0", "nan"), "outer_momentum": ("1", "-0.1", "inf"),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=f"attribute {name} must be .*{value}"):
                Options.of({"mode": "async", name: value}, REQUEST)


def test_short_epochs_train_in_async_mode_and_then_in_exact_mode(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULT_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    x = torch.randn(22, 5, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.argmax(1))
    model = nn.Linear(5, 5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fabric = FabricModel(model, lambda: (data, data), nn.functional.cross_entropy, optimizer)

    def loss():
        return nn.functional.cross_entropy(model(x), x.argmax(1)).item()

    before = loss()
    fabric.train(5, 4, 2, mode="async")
    assert loss() < before - 0.1
    assert (tmp_path / "model" / "train" / "model_epoch_final.pth").exists()
    trained = copy.deepcopy(model.state_dict())
    optimizer.param_groups[0]["lr"] = 0.0
    fabric.train(1, 4, 2, mode="exact")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained[name]), "the outer optimizer changed a parameter in exact mode"


class Freeze(Callback):
    def on_epoch_begin(self, epoch):
        if epoch == 1:
            self.model[0].requires_grad_(False)
            self.then = copy.deepcopy(self.model[0].state_dict())


@pytest.mark.parametrize("mode", ["exact", "async"])
def test_a_layer_that_a_callback_freezes_stays_unchanged(tmp_path, monkeypatch, mode):
    monkeypatch.setenv("RESULT_DIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    x = torch.randn(22, 5, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.argmax(1))
    model, callback = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5)), Freeze()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    FabricModel(
        model, lambda: (data, data), nn.functional.cross_entropy, optimizer, user_callback=[callback]
    ).train(3, 4, 2, mode=mode)
    for name, tensor in model[0].state_dict().items():
        assert torch.equal(tensor, callback.then[name])


#: A learnable task. Labels are the numbers of samples, and a metric shows which samples were trained.
SCRIPT = """
import json, os, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate
from callbacks import LoggerCallback
from fabric_model import FabricModel

result = os.environ["RESULT_DIR"]
options = json.loads(sys.argv[1])
g = torch.Generator().manual_seed(5)
marks = torch.randint(2**20, (100,), generator=g)
centres = torch.randn(4, 8, generator=g)


def samples(count, seed):
    g = torch.Generator().manual_seed(seed)
    numbers = torch.arange(count)
    return TensorDataset(centres[numbers % 4] + 0.5 * torch.randn(count, 8, generator=g), numbers)


def collate(samples):
    if not os.path.exists(os.path.join(result, "hurry")):
        time.sleep(0.1 if os.environ["DLI_WORKER_NUMBER"] == str(options.get("slow")) else 0.02)
    return default_collate(samples)


def loss(outputs, numbers):
    return F.cross_entropy(outputs, numbers % 4)


def mark(outputs, numbers):
    return marks[numbers].double().mean()


class Logger(LoggerCallback):
    def __init__(self):
        self.rows = open(os.path.join(result, "rows.jsonl"), "a")

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        print(json.dumps(["train", metrics, iteration, epoch]), file=self.rows, flush=True)

    def log_test_metrics(self, metrics, iteration, epoch):
        print(json.dumps(["test", metrics, iteration, epoch]), file=self.rows, flush=True)


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
fabric = FabricModel(model, lambda: (samples(94, 1), samples(60, 2)), loss, optimizer, metrics=[mark],
                     driver_logger=Logger(), fn_batch_collate=collate)
fabric.train(12, 4, 3, mode=options["mode"])
state = [*model.state_dict().values(), *(values["momentum_buffer"] for values in optimizer.state.values())]
with open(os.path.join(result, "outcome.json"), "w") as file:
    json.dump([tensor.tolist() for tensor in state], file)
"""

EPOCHS, SAMPLES, BATCHES = 12, 94, 24


def new_training(tmp_path, slots, mode="async", kind=Training, slow=None, **attributes):
    training = kind(tmp_path, slots, 3, mode=mode, slow=slow)
    (training.code / "train.py").write_text(SCRIPT)
    training.attributes = {**training.attributes, "window": "3", **attributes}
    return training


def to_the_end(training):
    outcome = training.finish()
    assert outcome.returncode == 0, outcome.stderr
    return outcome


def losses(training):
    return [metrics["loss"] for kind, metrics, *_ in training.rows if kind == "test"]


def assert_every_sample_once_per_epoch(training):
    generator = torch.Generator().manual_seed(5)
    marks = torch.randint(2**20, (100,), generator=generator)
    for epoch in range(EPOCHS):
        rows = [metrics for kind, metrics, _, of in training.rows if kind == "train" and of == epoch]
        assert len(rows) == BATCHES, "expected one line per batch, as in the other modes"
        assert round(rows[-1]["mark"] * SAMPLES) == marks[:SAMPLES].sum().item()


@pytest.fixture(scope="module")
def exact_losses(tmp_path_factory):
    training = new_training(tmp_path_factory.mktemp("exact"), 1, "exact")
    training.begin()
    to_the_end(training)
    return losses(training)


def assert_learned_as_well(found, exact):
    assert len(found) == len(exact) == EPOCHS
    assert exact[-1] < exact[0] / 3, "the reference training did not learn"
    assert found[-1] < exact[0] / 3
    assert found[-1] < 2 * exact[-1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A training on one worker."""
    training = new_training(tmp_path_factory.mktemp("alone"), 1)
    training.begin()
    to_the_end(training)
    return training


@pytest.mark.integration
def test_one_worker_learns_as_in_exact_mode(alone, exact_losses):
    assert_every_sample_once_per_epoch(alone)
    assert_learned_as_well(losses(alone), exact_losses)
    last = [message for message in alone.messages if message["op"] == "progress" and "steps" in message][-1]
    assert last["step"] == last["steps"] == EPOCHS * 3, "expected one step per window"


class Shrinking(Training):
    """Reduces the allocation to one slot as soon as a third worker is requested."""

    def _spawn(self, message):
        if message["worker"] > 2:
            self.allocate(1)
        super()._spawn(message)


@pytest.mark.integration
def test_a_window_interrupted_by_a_death_is_trained_again_without_a_trace(tmp_path, alone):
    training = new_training(tmp_path, 1, kind=Shrinking, slow=2)
    try:
        # While the slow worker makes its first local step, the other worker makes all of its local steps.
        training.begin(ELASTIC_FAULT="local-step:2:*:kill")
        training.wait_for_step(1)
        training.allocate(2)
        training.wait(lambda: training.status.get("deaths") == 1, "worker 2 dies")
        training.wait_for_workers(1)
        to_the_end(training)
    finally:
        training.abort()
    assert training.digest == alone.digest
    assert training.rows == alone.rows


@pytest.mark.integration
@pytest.mark.parametrize("attributes", [{}, {"outer_lr": "0.5", "outer_momentum": "0.5", "snapshot_seconds": "0.05"}])
def test_training_learns_while_workers_join_leave_and_die_in_windows(tmp_path, exact_losses, attributes):
    training = new_training(tmp_path, 1, **attributes)
    try:
        # The first new worker is killed after its first local step, which no other worker has made.
        training.begin(ELASTIC_FAULT="local-step:2:*:kill")
        training.wait_for_step(1)
        training.allocate(3)
        training.wait(lambda: training.status.get("deaths") == 1, "worker 2 dies")
        training.wait_for_workers(3)
        training.wait_for_step(training.status["step"] + 2)
        training.kill(1)
        training.wait(lambda: training.status.get("deaths") == 2, "worker 1 dies")
        training.wait_for_workers(3)
        training.resize(2)
        training.wait_for_step(training.status["step"] + 2)
        to_the_end(training)
    finally:
        training.abort()
    assert_every_sample_once_per_epoch(training)
    assert_learned_as_well(losses(training), exact_losses)
