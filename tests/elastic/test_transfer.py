"""The transfer of a state from one member to others."""

import itertools
import pickle
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import PATIENCE
from torch import nn
from zoo import CPU, TENSORS, Wire, make, over_the_wire, same, train, wires

from local_backend.elastic import faults
from local_backend.elastic.errors import GroupBroken
from local_backend.elastic.state.replica import Replica
from local_backend.elastic.state.transfer import Sending, messages, receive_state, send_state

pytestmark = pytest.mark.usefixtures("one_thread")


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
def test_any_tensors_are_received_unchanged(tensors, chunk, large):
    from local_backend.elastic.state import transfer
    from local_backend.elastic.state.replica import ReplicaState

    patch = pytest.MonkeyPatch()
    patch.setattr(transfer.messages, "__defaults__", (chunk, large))
    try:
        received = over_the_wire(ReplicaState(b"meta", tensors), None)
    finally:
        patch.undo()
    assert received.meta == b"meta"
    assert same(received.tensors, tensors)


def test_one_donor_sends_to_several_members_in_few_messages():
    job = make()
    train(job, 2)
    ends = wires(3)
    state = Replica(job).capture()
    sending = Sending(ends[0], [1, 2], state)
    received = [receive_state(end, 0, CPU) for end in ends[1:]]
    sending.join(PATIENCE)
    for other in received:
        assert same(other.tensors, [tensor.contiguous() for tensor in state.tensors])
    assert len(ends[0].sizes) == 2 * 3, "expected 3 messages per receiver: length, head, and all small tensors together"


def test_an_error_while_sending_is_raised_by_join():
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
    """Changes by forward and backward in the meantime (buffers, gradients) are not in the copy."""
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


def test_the_metadata_is_small():
    job = make(callbacks=[])
    job.model.big = nn.Parameter(torch.zeros(300_000))
    job.model.register_buffer("bigger", torch.zeros(300_000))
    state = Replica(job).capture()
    assert len(state.meta) < 20_000 < state.size
    assert pickle.loads(state.meta)
