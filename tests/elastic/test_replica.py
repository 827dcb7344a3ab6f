"""Copies of a training: a worker that gets one continues with the same bits, for every way of transfer."""

import io
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from zoo import OPTIMIZERS, TENSORS, Course, make, over_the_wire, same, train

from local_backend.elastic.errors import EngineError
from local_backend.elastic.position import Position
from local_backend.elastic.state.live import Live, dumps, loads
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.state.snapshots import SnapshotFolder

pytestmark = pytest.mark.usefixtures("one_thread")


def over_the_disk(state, folder):
    SnapshotFolder(folder).write(Position(1), Replica.copy(state))
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
def test_the_receiver_continues_with_the_same_bits(tmp_path, way, optimizer, steps_of_receiver):
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


def test_restore_keeps_the_live_objects():
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


def test_a_copy_has_its_own_tensors():
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
    assert replica.digest() == digest, "restore handed the copy's tensors to the training"


def test_frozen_parameters_modes_groups_and_plain_attributes_are_restored():
    def change(job):
        job.model.frozen.requires_grad_(True)
        job.model.into.bias.requires_grad_(False)
        job.model.norm.eval()
        job.model.rate = {"now": [0.125, None]}
        job.model.table_of_words = dict.fromkeys(range(5000))
        job.optimizer.add_param_group({"params": [job.model.convolution.weight], "lr": 0.7})
        job.loss_function.alpha = 0.75
        job.model.config.rate, job.model.config.inner.noise = 0.5, [0.25]

    class Loss:
        alpha = 1.0

        def __init__(self):
            self.words = "kept"

        def __call__(self, outputs, labels):
            return self.alpha * outputs.square().mean()

    donor, receiver = make("adamw-groups", callbacks=[], loss=Loss()), make("adamw-groups", callbacks=[], loss=Loss())
    for job in (donor, receiver):
        job.model.config = SimpleNamespace(rate=1.0, inner=SimpleNamespace(noise=[1.0]), model=job.model)
        job.model.into.config = job.model.config
    change(donor)
    Replica(receiver).restore(Replica(donor).capture())
    model = receiver.model
    assert all(parameter.requires_grad for parameter in model.frozen.parameters())
    assert not model.into.bias.requires_grad
    assert model.training and not model.norm.training
    assert model.rate == {"now": [0.125, None]}
    assert not hasattr(model, "table_of_words"), "a large table was sent as state"
    assert receiver.optimizer.param_groups[2]["params"][0] is model.convolution.weight
    assert receiver.optimizer.param_groups[2]["lr"] == 0.7
    assert receiver.loss_function.alpha == 0.75
    assert model.into.config is model.config and model.config.model is model
    assert (model.config.rate, model.config.inner.noise) == (0.5, [0.25])
    Replica(receiver).restore(Replica(make("adamw-groups", callbacks=[], loss=Loss())).capture())
    assert len(receiver.optimizer.param_groups) == 2


def test_added_deleted_and_reshaped_buffers_are_restored():
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


def test_committed_values_replace_buffers_that_a_step_has_changed():
    donor, receiver = make(callbacks=[]), make(callbacks=[])
    expected = Replica(receiver).digest()
    # Detached, as in a Layout.
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


def test_the_state_of_another_model_is_refused():
    donor, receiver = make(callbacks=[]), make(callbacks=[])
    donor.model.extra = nn.Linear(2, 2)
    with pytest.raises(EngineError, match=r"has 1\d parameters, but this worker has \d+; callbacks"):
        Replica(receiver).restore(Replica(donor).capture())
    with pytest.raises(EngineError, match="has 2 callbacks and other parts, but this worker has 1"):
        Replica(receiver).restore(Replica(make()).capture())


# --- callbacks


class Board:
    """A callback that cannot be pickled after it has begun."""

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


def test_an_unpicklable_callback_keeps_its_state_and_replays_missed_calls():
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
        assert receiver.model.rate == rate, "a replay ran after a value was restored"
        callback.on_train_begin()

    assert Replica(receiver).restore(state, replay) == ["Board"]
    mine = receiver.callbacks[0]
    assert replayed == [mine]
    assert isinstance(mine.file, io.TextIOWrapper) and mine.file is not board.file
    assert (mine.rows, mine.rate) == (["first"], 0.5)
    assert receiver.callbacks[1].model is receiver.model, "a picklable callback was not restored as a whole"
    file = mine.file
    assert Replica(receiver).restore(state) == ["Board"]
    assert mine.file is file


def test_references_between_callbacks_are_kept():
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


def test_a_callback_without_attributes_is_restored():
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
def test_the_digest_depends_on_every_bit(optimizer):
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
            # The last byte of the last element in memory, also for channels_last.
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
def test_any_nesting_is_restored_without_loss(value):
    live, tensors = Live(make(callbacks=[])), []
    data = dumps([value, value], live, tensors)
    assert len(tensors) == len({id(leaf) for leaf in leaves(value)}), "a tensor is inside the pickle"
    first, second = loads(data, live, tensors)
    assert equal(first, value)
    assert all(a is b for a, b in zip(leaves(first), leaves(second), strict=True)), "a shared tensor was loaded twice"
    assert all(a is not b for a, b in zip(leaves(first), leaves(value), strict=True))
