"""Copies of a training: a worker that gets one goes on with the same bits, whichever way the copy came."""

import copy
import io
import itertools
import pickle
import queue
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import PATIENCE
from torch import nn

from local_backend.elastic import faults
from local_backend.elastic.errors import EngineError, GroupBroken
from local_backend.elastic.job import Job
from local_backend.elastic.live import Live, dumps, loads
from local_backend.elastic.replica import Replica
from local_backend.elastic.snapshots import SnapshotFolder
from local_backend.elastic.transfer import Sending, messages, receive_state, send_state

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Zoo(nn.Module):
    """All kinds of parameters and buffers."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.into = nn.Linear(4, 5)
        self.out = nn.Linear(4, 5)
        self.out.weight = self.into.weight
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.bfloat = nn.Parameter(torch.randn(3).to(torch.bfloat16))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.register_buffer("nothing", None)
        self.register_buffer("precise", torch.randn(2, dtype=torch.float64))
        self.register_buffer("table", torch.randint(0, 9, (40,)))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.register_buffer("flag", torch.tensor(False))
        self.norm.running = self.norm.running_mean  # the same tensor, not registered twice
        self.rate = 0.25

    def forward(self, x):
        x = self.norm(self.convolution(x)).mean((2, 3)) * self.scale + self.bfloat.float().sum()
        self.hidden = self.hidden + 1
        return self.dropout(self.into(x) + self.out(x) @ self.frozen.weight) * self.rate


class Nested(torch.optim.Optimizer):
    """SGD with state of every shape."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01, "betas": (0.9, 0.99), "scale": torch.tensor(0.5)})
        self.calls = 0
        self.slow = [torch.zeros(()), {"deep": torch.zeros((), dtype=torch.int64)}]

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        self.slow[0] += self.calls
        self.state["shared"] = {"count": self.state.get("shared", {"count": 0})["count"] + 1, "none": None}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                own = self.state[parameter]
                own.setdefault("past", []).append((parameter.grad.double(), {"n": len(own["past"])}))
                del own["past"][:-2]
                own["plain"] = (len(own["past"]), "text", 0.5)
                mean = sum(past for past, _ in own["past"]) / len(own["past"])
                parameter.sub_((group["lr"] * group["scale"] * mean / self.slow[0]).to(parameter.dtype))


class Wrapper(torch.optim.Optimizer):
    """Steps another one, and halves its rate."""

    def __init__(self, inner):
        super().__init__([torch.zeros(1)], inner.defaults)
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure=None):
        self.inner.step()
        for group in self.param_groups:
            group["lr"] *= 0.5


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
    "adamw-groups": lambda model: torch.optim.AdamW(
        [{"params": model.into.parameters(), "lr": 0.1}, {"params": [model.scale], "weight_decay": 0.3}], foreach=True
    ),
    "tensor-rate": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), capturable=False),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), 0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), centered=True, momentum=0.5),
    "rprop": lambda model: torch.optim.Rprop(model.parameters()),
    "nested": lambda model: Nested(model.parameters()),
    "wrapped": lambda model: Wrapper(torch.optim.Adam(model.parameters())),
}


class Course:
    """A callback with a schedule, an average of the model, and references to everything."""

    def on_train_begin(self, job):
        self.params = {"optimizer": job.optimizer, "epochs": 3}
        self.model = job.model
        inner = getattr(job.optimizer, "inner", job.optimizer)
        self.schedule = torch.optim.lr_scheduler.SequentialLR(
            inner,
            [
                torch.optim.lr_scheduler.LinearLR(inner, 0.5, total_iters=2),
                torch.optim.lr_scheduler.LambdaLR(inner, lambda epoch: 0.9**epoch),
            ],
            [2],
        )
        self.average = copy.deepcopy(job.model)
        self.best = (float("inf"), {})
        self.layers = [job.model.norm, job.model.scale, job.model.norm.running_mean]

    def step(self):
        self.schedule.step()
        with torch.no_grad():
            for mine, its in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(its, 0.1)
        self.best = (self.model.scale.item(), {k: v.clone() for k, v in self.model.state_dict().items()})
        self.model.dropout.p *= 0.9


def make(optimizer="amsgrad", begun=True, callbacks=None, loss=nn.functional.mse_loss):
    torch.manual_seed(0)
    model = Zoo()
    job = Job(model, tuple, loss, OPTIMIZERS[optimizer](model), 3, 4)
    job.callbacks = [Course()] if callbacks is None else callbacks
    job.find_parts()
    if begun and callbacks is None:
        job.callbacks[0].on_train_begin(job)
    return job


def train(job, steps, first=0):
    for step in range(first, first + steps):
        torch.manual_seed(step)
        job.optimizer.zero_grad()
        inputs = torch.randn(3, 2, 6, 6).to(memory_format=torch.channels_last)
        job.loss_function(job.model(inputs), torch.zeros(3, 5)).backward()
        job.optimizer.step()
        for callback in job.callbacks:
            callback.step()


class Wire:
    """One member's end of a group between threads, which remembers the sizes of messages."""

    def __init__(self, rank, queues):
        self.rank, self.queues, self.sizes = rank, queues, []

    def send(self, tensor, to):
        assert tensor.dim() == 1 and tensor.is_contiguous()
        self.sizes.append(tensor.nbytes)
        self.queues[self.rank, to].put(tensor.clone(), timeout=PATIENCE)

    def receive(self, tensor, source):
        sent = self.queues[source, self.rank].get(timeout=PATIENCE)
        assert (sent.shape, sent.dtype) == (tensor.shape, tensor.dtype)
        tensor.copy_(sent)


def wires(size):
    queues = {(i, j): queue.Queue() for i in range(size) for j in range(size)}
    return [Wire(rank, queues) for rank in range(size)]


def over_the_wire(state, _):
    here, there = wires(2)
    sending = Sending(here, [1], state)
    received = receive_state(there, 0, CPU)
    sending.join(PATIENCE)
    return received


def over_the_disk(state, folder):
    SnapshotFolder(folder).write(1, Replica.copy(state))
    return SnapshotFolder(folder).newest().load()


WAYS = {
    "same process": lambda state, _: state,
    "copy": lambda state, _: Replica.copy(state),
    "wire": over_the_wire,
    "disk": over_the_disk,
}


@pytest.mark.parametrize(
    ("optimizer", "way"),
    [*((optimizer, "wire") for optimizer in OPTIMIZERS), *(("nested", way) for way in WAYS if way != "wire")],
)
@pytest.mark.parametrize("steps_of_receiver", [0, 2])
def test_the_receiver_goes_on_with_the_same_bits(tmp_path, way, optimizer, steps_of_receiver):
    donor, receiver = make(optimizer), make(optimizer, begun=steps_of_receiver > 0)
    train(donor, 4)
    train(receiver, steps_of_receiver)
    expected = Replica(donor).digest()
    assert Replica(receiver).digest() != expected
    state = WAYS[way](Replica(donor).capture(), tmp_path)
    assert Replica(receiver).restore(state) == []
    assert Replica(receiver).digest() == expected
    for job in (donor, receiver):
        train(job, 3, first=4)
    assert Replica(receiver).digest() == Replica(donor).digest() != expected
    mine, its = receiver.callbacks[0], donor.callbacks[0]
    assert receiver.model.dropout.p == donor.model.dropout.p < 0.5
    assert mine.schedule.get_last_lr() == its.schedule.get_last_lr()
    assert same(list(mine.average.parameters()), list(its.average.parameters()))
    assert mine.best[0] == its.best[0]
    assert same(list(mine.best[1].values()), list(its.best[1].values()))


def same(first, second):
    """The same values, types and layout."""

    def kind(tensor):
        return tensor.dtype, tensor.shape, tensor.stride() if tensor.numel() else None, tensor.requires_grad

    return len(first) == len(second) and all(
        kind(a) == kind(b) and torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def test_restoring_keeps_the_live_objects():
    donor, receiver = make(), make()
    train(donor, 2)
    model, optimizer, group = receiver.model, receiver.optimizer, receiver.optimizer.param_groups[0]
    mean, weight, pointer = model.norm.running_mean, model.into.weight, model.into.weight.data_ptr()
    Replica(receiver).restore(Replica(donor).capture())
    course = receiver.callbacks[0]
    assert course.params["optimizer"] is course.schedule.optimizer is optimizer
    assert course.model is model and model.out.weight is model.into.weight is weight
    assert weight.data_ptr() == pointer and model.norm.running is model.norm.running_mean is mean
    assert course.layers[0] is model.norm and course.layers[1] is model.scale and course.layers[2] is mean
    assert optimizer.param_groups[0] is group
    assert all(mine is its for mine, its in zip(group["params"], model.parameters(), strict=True))
    assert set(optimizer.state) <= set(model.parameters())
    assert type(course.average.into.weight) is nn.Parameter and course.average.into.weight is not weight


def test_a_copy_has_tensors_of_its_own():
    job = make()
    train(job, 2)
    replica = Replica(job)
    before = replica.copy(replica.capture())
    digest = replica.digest()
    train(job, 2, first=2)
    replica.restore(before)
    assert replica.digest() == digest
    train(job, 2, first=2)
    replica.restore(before)
    assert replica.digest() == digest, "restoring did not hand the copy's tensors to the training"


def test_frozen_parameters_modes_groups_and_plain_attributes_travel():
    def change(job):
        job.model.frozen.requires_grad_(True)
        job.model.into.bias.requires_grad_(False)
        job.model.norm.eval()
        job.model.rate = {"now": [0.125, None]}
        job.model.table_of_words = dict.fromkeys(range(5000))
        job.optimizer.add_param_group({"params": [job.model.convolution.weight], "lr": 0.7})
        job.loss_function.alpha = 0.75

    class Loss:
        alpha = 1.0

        def __init__(self):
            self.words = "kept"

        def __call__(self, outputs, labels):
            return self.alpha * outputs.square().mean()

    donor, receiver = make("adamw-groups", callbacks=[], loss=Loss()), make("adamw-groups", callbacks=[], loss=Loss())
    change(donor)
    Replica(receiver).restore(Replica(donor).capture())
    model = receiver.model
    assert all(parameter.requires_grad for parameter in model.frozen.parameters())
    assert not model.into.bias.requires_grad
    assert model.training and not model.norm.training
    assert model.rate == {"now": [0.125, None]}
    assert not hasattr(model, "table_of_words"), "large tables are not state"
    assert receiver.optimizer.param_groups[2]["params"][0] is model.convolution.weight
    assert receiver.optimizer.param_groups[2]["lr"] == 0.7
    assert receiver.loss_function.alpha == 0.75
    Replica(receiver).restore(Replica(make("adamw-groups", callbacks=[], loss=Loss())).capture())
    assert len(receiver.optimizer.param_groups) == 2


def test_buffers_that_came_went_or_changed_their_shape():
    donor, receiver = make(callbacks=[]), make(callbacks=[])
    donor.model.register_buffer("late", torch.ones(3), persistent=False)
    donor.model.register_buffer("nothing", torch.ones(2))
    donor.model.precise = torch.zeros(7, dtype=torch.float16)
    donor.model.flag = None
    del donor.model.table
    Replica(receiver).restore(Replica(donor).capture())
    model = receiver.model
    assert model.late.tolist() == [1, 1, 1] and model.nothing.tolist() == [1, 1]
    assert "late" not in model.state_dict() and "nothing" in model.state_dict()
    assert model.precise.dtype == torch.float16 and model.precise.shape == (7,)
    assert model.flag is None and not hasattr(model, "table")
    assert Replica(receiver).digest() == Replica(donor).digest()


def test_committed_values_stand_for_buffers_that_a_step_has_begun_to_change():
    donor, receiver = make(callbacks=[]), make(callbacks=[])
    expected = Replica(receiver).digest()
    # As a Layout has them: detached.
    live = [donor.model.norm.running_mean.detach(), donor.model.norm.num_batches_tracked.detach()]
    committed = [(buffer, buffer.clone()) for buffer in live]
    donor.model.norm(torch.randn(3, 4, 2, 2))
    for buffer, value in committed:
        assert not torch.equal(buffer, value)
    donor.model.norm.running_var.fill_(1.0)
    state = Replica(donor).capture(committed)
    assert Replica(donor).digest(committed) == expected != Replica(donor).digest()
    train(receiver, 1)
    Replica(receiver).restore(state)
    receiver.optimizer.state.clear()
    assert Replica(receiver).digest() == expected


def test_the_state_of_another_model_is_refused_with_a_sentence():
    donor, receiver = make(callbacks=[]), make(callbacks=[])
    donor.model.extra = nn.Linear(2, 2)
    with pytest.raises(EngineError, match=r"has 1\d parameters and the one here has \d+; callbacks"):
        Replica(receiver).restore(Replica(donor).capture())
    with pytest.raises(EngineError, match="has 2 callbacks and other parts and the one here has 1"):
        Replica(receiver).restore(Replica(make()).capture())


# --- callbacks


class Board:
    """Cannot be pickled once it has begun."""

    def __init__(self):
        self.rows = []

    def on_train_begin(self):
        self.file = io.TextIOWrapper(io.BytesIO())
        self.rows = []
        self.rate = 1.0


class Friend:
    def __init__(self, other):
        self.other = other
        self.me = self


def test_a_callback_that_cannot_be_pickled_keeps_what_it_has_and_goes_through_what_it_has_missed():
    donor, receiver = make(callbacks=[Board(), Course()]), make(callbacks=[Board(), Course()])
    donor.callbacks[1].on_train_begin(donor)
    board = donor.callbacks[0]
    board.on_train_begin()
    board.rows.append("first")
    board.rate = 0.5
    replica = Replica(donor)
    with pytest.warns(UserWarning, match=r"^file of the Board cannot be copied to workers that join \(Cannot"):
        state = replica.capture()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replica.capture()
    replayed = []
    rate = receiver.model.rate = 9.0
    assert rate != donor.model.rate

    def replay(callback):
        replayed.append(callback)
        assert receiver.model.rate == rate, "before anything is taken over"
        callback.on_train_begin()

    assert Replica(receiver).restore(state, replay) == ["Board"]
    mine = receiver.callbacks[0]
    assert replayed == [mine]
    assert isinstance(mine.file, io.TextIOWrapper) and mine.file is not board.file
    assert (mine.rows, mine.rate) == (["first"], 0.5)
    assert receiver.callbacks[1].model is receiver.model, "the others come whole"
    file = mine.file
    assert Replica(receiver).restore(state) == ["Board"]
    assert mine.file is file


def test_callbacks_that_know_each_other_still_do():
    first = Friend(None)
    donor = make(callbacks=[first, Friend(first)])
    other = Friend(None)
    receiver = make(callbacks=[other, Friend(None)])
    donor.callbacks[0].count = 3
    Replica(receiver).restore(Replica(donor).capture())
    mine = receiver.callbacks
    assert mine[0] is mine[0].me is mine[1].other is other
    assert mine[0].count == 3
    assert mine[1].me is mine[1]


def test_a_callback_without_attributes():
    class Bare:
        __slots__ = ()

    donor, receiver = make(callbacks=[Bare()]), make(callbacks=[Bare()])
    assert Replica(receiver).restore(Replica(donor).capture()) == []


# --- digest


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [leaf for item in items for leaf in leaves(item)]


@pytest.mark.parametrize("optimizer", ["amsgrad", "nested", "tensor-rate"])
def test_the_digest_sees_every_bit(optimizer):
    job = make(optimizer, callbacks=[])
    train(job, 2)
    replica = Replica(job)
    expected = replica.digest()
    tensors = [*job.model.parameters(), *job.model.buffers(), *leaves(dict(job.optimizer.state))]
    tensors += [group[key] for group in job.optimizer.param_groups for key in ("lr", "scale")
                if isinstance(group.get(key), torch.Tensor)]
    changed = 0
    for tensor in tensors:
        if not tensor.numel():
            continue
        if tensor.dim():
            # The last byte in memory of the last element, also of channels_last.
            flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,)).view(torch.uint8)
        else:
            flat = tensor.detach().reshape(1).view(torch.uint8)
        flat[-1] ^= 1
        assert replica.digest() != expected
        flat[-1] ^= 1
        changed += 1
    assert changed > 10
    assert replica.digest() == expected
    job.optimizer.param_groups[0]["lr"] *= 2
    assert replica.digest() != expected


# --- any value


TENSORS = st.builds(
    lambda shape, dtype, seed: (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(
        [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool,
         torch.complex64]
    ),
    st.integers(0, 99),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(), st.booleans(), TENSORS),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(), inner, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=12,
)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and same([a], [b])
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@given(VALUES)
def test_any_nesting_travels_without_loss(value):
    live, tensors = Live(make(callbacks=[])), []
    data = dumps([value, value], live, tensors)
    assert len(tensors) == len({id(leaf) for leaf in leaves(value)}), "all are beside the pickle"
    first, second = loads(data, live, tensors)
    assert equal(first, value)
    assert all(a is b for a, b in zip(leaves(first), leaves(second), strict=True)), "once is once"
    assert all(a is not b for a, b in zip(leaves(first), leaves(value), strict=True))


# --- transfer


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(10, 60), st.integers(1, 40))
def test_messages_cover_all_bytes_once_and_are_bounded(sizes, chunk, large):
    groups = list(messages(sizes, chunk, large))
    assert sorted(number for group in groups for number in group) == [n for n, size in enumerate(sizes) if size]
    for group in groups:
        assert len(group) == 1 or sum(sizes[number] for number in group) <= chunk
        assert len(group) == 1 or all(sizes[number] < large for number in group)
    full = [sum(sizes[n] for n in group) for group in groups if sizes[group[0]] < large]
    assert all(a + b > chunk for a, b in itertools.pairwise(full))


@settings(deadline=None, max_examples=30)
@given(st.lists(TENSORS, max_size=8), st.integers(1, 60), st.integers(1, 60))
def test_any_tensors_arrive(tensors, chunk, large):
    from local_backend.elastic import transfer
    from local_backend.elastic.replica import State

    patch = pytest.MonkeyPatch()
    patch.setattr(transfer.messages, "__defaults__", (chunk, large))
    try:
        received = over_the_wire(State(b"meta", tensors), None)
    finally:
        patch.undo()
    assert received.meta == b"meta"
    assert same(received.tensors, tensors)


def test_one_donor_sends_to_several_in_few_messages():
    job = make()
    train(job, 2)
    ends = wires(3)
    state = Replica(job).capture()
    sending = Sending(ends[0], [1, 2], state)
    received = [receive_state(end, 0, CPU) for end in ends[1:]]
    sending.join(PATIENCE)
    for other in received:
        assert same(other.tensors, [tensor.contiguous() for tensor in state.tensors])
    assert len(ends[0].sizes) == 2 * 3, "length, head, and all small tensors together"


def test_what_fails_while_sending_is_raised_by_join():
    class Broken(Wire):
        def send(self, tensor, to):
            if len(self.sizes) == 2:
                raise GroupBroken("a peer is gone")
            super().send(tensor, to)

    sending = Sending(Broken(0, wires(2)[0].queues), [1], Replica(make()).capture())
    with pytest.raises(GroupBroken, match="a peer is gone"):
        sending.join(PATIENCE)


def test_a_fault_can_be_injected_into_the_copy():
    faults.arm(1, {faults.VARIABLE: "state-copy:1:*:raise"})
    try:
        with pytest.raises(faults.InjectedError, match="state-copy"):
            send_state(wires(2)[0], 1, Replica(make()).capture())
    finally:
        faults.arm(0, {})


def test_the_state_may_be_sent_while_the_next_step_is_computed():
    """What forward and backward change in the meantime (buffers, gradients) is not in the copy."""
    donor, receiver = make(callbacks=[]), make(callbacks=[])
    train(donor, 2)
    replica = Replica(donor)
    expected = replica.digest()
    live = [buffer for buffer in donor.model.buffers() if buffer.is_floating_point() or buffer.numel() < 16]
    state = replica.capture([(buffer, buffer.clone()) for buffer in live])
    started, go_on = threading.Event(), threading.Event()

    class Slow(Wire):
        def send(self, tensor, to):
            started.set()
            assert go_on.wait(PATIENCE)
            super().send(tensor, to)

    here, there = wires(2)
    sending = Sending(Slow(0, here.queues), [1], state)
    assert started.wait(PATIENCE)
    donor.model(torch.randn(3, 2, 6, 6)).sum().backward()
    assert replica.digest() != expected
    go_on.set()
    Replica(receiver).restore(receive_state(there, 0, CPU))
    sending.join(PATIENCE)
    assert Replica(receiver).digest() == expected


def test_meta_is_small():
    job = make(callbacks=[])
    job.model.big = nn.Parameter(torch.zeros(300_000))
    job.model.register_buffer("bigger", torch.zeros(300_000))
    state = Replica(job).capture()
    assert len(state.meta) < 20_000 < state.size
    assert pickle.loads(state.meta)
