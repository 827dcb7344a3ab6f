"""Groups form by messages, can be left at any time, and never hang or end their process."""

import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from support import PATIENCE, eventually

from local_backend.elastic.collective.group import Formation, Interrupted
from local_backend.elastic.errors import GroupBroken

CPU = torch.device("cpu")
never = bool


def formations(size, generation=1, before=lambda rank, key, value: True):
    """Return `size` formations in this process. `before` decides whether a value is passed on."""
    made, complete = [], threading.Event()

    def publish(rank, key, value):
        assert complete.wait(PATIENCE)
        for other, formation in enumerate(made):
            if other != rank and before(rank, key, value):
                formation.deliver(key, value)

    for rank in range(size):
        made.append(
            Formation(generation, rank, size, CPU, lambda key, value, r=rank: publish(r, key, value), lambda: None)
        )
    complete.set()
    return made


@pytest.fixture
def groups():
    """A factory of groups in this process. The fixture drops them after the test."""
    made = []

    def make(size):
        new = [formation.result(never) for formation in formations(size)]
        made.extend(new)
        return new

    yield make
    for group in made:
        group.drop()


def together(*works):
    """Run `works` at the same time and return each result or exception."""
    results = [None] * len(works)

    def run(i):
        try:
            results[i] = works[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_collectives_return_the_values_of_all_members(groups, size):
    def work(group):
        ranks = torch.arange(float(size))
        gathered = torch.empty(2 * size)
        group.all_gather(gathered, torch.full((2,), float(group.rank)))
        assert torch.equal(gathered, ranks.repeat_interleave(2))
        place = gathered[2 * group.rank :][:2]
        place += 1
        group.all_gather(gathered, place)
        assert torch.equal(gathered, ranks.repeat_interleave(2) + 1)
        # Member m gets m + 1 numbers from each member.
        sizes = [m + 1 for m in range(size)]
        received = torch.empty(size * (group.rank + 1))
        sent = ranks.repeat_interleave(torch.tensor(sizes)) * 10 + group.rank
        group.all_to_all(received, sent, [group.rank + 1] * size, sizes)
        assert torch.equal(received, (ranks + 10 * group.rank).repeat_interleave(group.rank + 1))
        tensors = [torch.full((4,), float(group.rank + i)) for i in range(3)]
        handles = [group.all_reduce_start(tensor) for tensor in tensors]
        for handle in handles:
            handle.wait()
        assert [tensor[0].item() for tensor in tensors] == [sum(range(size)) + i * size for i in range(3)]
        return "fine"

    assert together(*(lambda g=group: work(g) for group in groups(size))) == ["fine"] * size


def test_transfers_and_collectives_run_at_the_same_time(groups):
    pair = groups(2)
    big, arrived = torch.arange(1_000_000.0), torch.empty(1_000_000)

    def sums(group):
        for _ in range(50):
            tensor = torch.ones(10)
            group.all_reduce_start(tensor).wait()
            assert tensor.sum() == 20

    assert together(
        lambda: sums(pair[0]), lambda: sums(pair[1]), lambda: pair[0].send(big, 1), lambda: pair[1].receive(arrived, 0)
    ) == [None] * 4
    assert torch.equal(big, arrived)


@pytest.mark.parametrize("operation", ["all_gather", "all_reduce", "receive"])
def test_a_wait_ends_when_the_hub_interrupts_or_a_peer_drops_the_group(groups, operation):
    waits = {
        "all_gather": lambda g: g.all_gather(torch.empty(2), torch.ones(1)),
        "all_reduce": lambda g: g.all_reduce_start(torch.ones(1)).wait(),
        "receive": lambda g: g.receive(torch.empty(1), 1 - g.rank),
    }
    called, asked = groups(2)[0], threading.Event()

    def interrupted():
        asked.set()
        return asked.is_set()

    called.interrupted = interrupted
    assert isinstance(together(lambda: waits[operation](called))[0], Interrupted)

    left, waiting = groups(2)
    waiting.interrupted = asked.set  # signals that it waits; None means no interruption
    asked.clear()
    outcome = together(lambda: waits[operation](waiting), lambda: asked.wait(PATIENCE) and left.drop())[0]
    assert isinstance(outcome, GroupBroken)


def test_a_dropped_group_ends_its_own_waits(groups):
    group, _ = groups(2)
    asked = threading.Event()
    group.interrupted = asked.set
    outcome = together(
        lambda: group.receive(torch.empty(1), 1), lambda: asked.wait(PATIENCE) and group.drop()
    )[0]
    assert isinstance(outcome, GroupBroken)
    with pytest.raises(GroupBroken, match="dropped"):
        group.all_gather(torch.empty(2), torch.ones(1))
    group.drop()


def test_a_formation_can_be_abandoned():
    ours, theirs = formations(2, before=lambda *_: False)
    with pytest.raises(Interrupted):
        ours.result(lambda: True)
    ours.abandon()
    theirs.abandon()
    for formation in (ours, theirs):
        with pytest.raises(GroupBroken):
            formation.result(never)


def test_an_abandoned_group_is_dropped_unless_it_was_taken():
    ours, theirs = formations(2)
    group = theirs.result(never)
    eventually(lambda: ours._group is not None, "the group is connected")
    ours.abandon()
    with pytest.raises(GroupBroken):
        group.receive(torch.empty(1), 0)
    theirs.abandon()
    with pytest.raises(GroupBroken, match="abandoned"):
        ours.result(never)
    group.drop()


def test_values_may_arrive_before_they_are_needed():
    late, made = [], []
    first = Formation(1, 0, 2, CPU, lambda key, value: late.append((key, value)), lambda: None)
    eventually(lambda: late, "the first member has published")
    second = Formation(1, 1, 2, CPU, first.deliver, lambda: None)
    for key, value in list(late):
        second.deliver(key, value)
    made = [first.result(never), second.result(never)]
    assert [group.rank for group in made] == [0, 1]
    for group in made:
        group.drop()


def test_a_group_of_one_forms_at_once():
    formed = []
    group = Formation(3, 0, 1, CPU, lambda *_: None, lambda: formed.append(1)).result(never)
    assert (group.rank, group.size, group.generation, formed) == (0, 1, 3, [1])
    group.drop()


def test_an_error_while_publishing_breaks_the_formation():
    def fail(key, value):
        raise OSError("the hub is gone")

    with pytest.raises(GroupBroken, match="the hub is gone"):
        Formation(1, 0, 2, CPU, fail, lambda: None).result(never)


def test_groups_leave_no_descriptors_or_threads():
    def count():
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = count()
    for generation in range(30):
        # A group that is dropped early closes connections to members that have not formed theirs.
        for group in [formation.result(never) for formation in formations(3, generation)]:
            group.drop()
    eventually(lambda: all(now <= then for now, then in zip(count(), before, strict=True)),
               f"descriptors and threads are {before} again")


class Member:
    """A process that is a member; `Hub` reads its messages."""

    def __init__(self, hub):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("group_member.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.said = []
        self._reader = threading.Thread(target=self._read, args=(hub,), daemon=True)
        self._reader.start()

    def _read(self, hub):
        for line in self.process.stdout:
            message = json.loads(line)
            if message["op"] == "value":
                hub.relay(self, message)
            self.said.append((message["op"], message["generation"]))

    def order(self, op, **details):
        try:
            self.process.stdin.write(json.dumps({"op": op, **details}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def heard(self, op, generation):
        eventually(lambda: (op, generation) in self.said or self.process.poll(), f"{op} of generation {generation}")
        assert self.process.poll() is None

    def end(self):
        """End the process by the return of its main thread, and return the exit code."""
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self._reader.join()
            self.process.stdout.close()


class Hub:
    def __init__(self, size):
        self.generation = 0
        self.lock = threading.Lock()
        self.members = [Member(self) for _ in range(size)]

    def relay(self, source, message):
        with self.lock:
            for member in self.members:
                if member is not source and message["generation"] == self.generation:
                    member.order(**message)

    def form(self):
        self.generation += 1
        # Form all members before one of them publishes: a member cannot store a value of an unknown generation.
        with self.lock:
            for rank, member in enumerate(self.members):
                member.order("form", generation=self.generation, rank=rank, size=len(self.members))
        return self.generation

    def enter(self, elements=2000):
        for member in self.members:
            member.order("enter", generation=self.generation, elements=elements)

    def busy(self):
        for member in self.members:
            member.heard("busy", self.generation)

    def revoke(self, generation):
        for member in self.members:
            member.order("revoke", generation=generation)

    def kill(self, member):
        member.process.send_signal(signal.SIGKILL)
        with self.lock:
            self.members.remove(member)
        member.process.wait(PATIENCE)
        member.end()

    def join(self):
        member = Member(self)
        with self.lock:
            self.members.append(member)

    def end(self):
        return [member.end() for member in self.members]


@pytest.fixture
def hub():
    made = []

    def make(size):
        made.append(Hub(size))
        return made[0]

    yield make
    for hub in made:
        for member in hub.members:
            member.process.kill()
            member.end()


def churn(hub, rounds, seed, replace):
    """Let a member die in every round, during a collective or while the group forms.

    The survivors always form the next group.
    """
    chance = random.Random(seed)
    for _ in range(rounds):
        hub.form()
        hub.enter(elements=chance.choice([1, 2000, 300_000]))
        if chance.random() < 0.4:
            hub.kill(chance.choice(hub.members))
        else:
            hub.busy()
            hub.kill(chance.choice(hub.members))
        hub.revoke(hub.generation)
        if replace:
            hub.join()
    hub.form()
    hub.enter()
    hub.busy()


@pytest.mark.integration
def test_survivors_of_a_death_form_the_next_group_and_exit_normally(hub):
    four = hub(4)
    churn(four, 2, seed=1, replace=False)
    # The members exit during a collective, with a group that they have not dropped.
    assert four.end() == [0, 0]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_survivors_of_many_deaths_exit_normally(hub, seed):
    four = hub(4)
    churn(four, 100, seed, replace=True)
    assert four.end() == [0] * 4


@pytest.mark.integration
def test_a_stopped_member_does_not_block_the_others(hub):
    three = hub(3)
    three.form()
    three.enter(elements=300_000)
    three.busy()
    stopped = three.members[1]
    stopped.process.send_signal(signal.SIGSTOP)
    three.members.remove(stopped)
    three.revoke(1)
    three.form()
    three.enter()
    three.busy()
    assert three.end() == [0, 0]
    three.members.clear()
    stopped.process.kill()
    stopped.end()


EXITS = {
    "right after drop": "for g in groups: g.all_reduce_start(torch.ones(100_000))\nfor g in groups: g.drop()",
    "with groups that stand": "keep = groups",
    "with collectives under way": "work = [groups[0].all_reduce_start(torch.ones(100_000))]",
    "with formations under way": "more = [Formation(2, 0, 3, CPU, lambda *_: None, lambda: None) for _ in range(5)]",
    "while connecting to a member that has died": """
values, published = [], threading.Event()
dead = Formation(2, 0, 2, CPU, lambda *value: values.append(value), lambda: None)
eventually(lambda: values, "an address")
dead.abandon()
eventually(lambda: "group-formation" not in [t.name for t in threading.enumerate()], "the thread ends")
connecting = Formation(2, 1, 2, CPU, lambda *_: published.set(), lambda: None)
assert published.wait(PATIENCE)
connecting.deliver(*values[0])
""",
    "with a receive under way": (
        "threading.Thread(target=lambda: groups[0].receive(torch.empty(1), 1), daemon=True).start()"
    ),
    "by an exception": "groups[0].drop()\nraise SystemExit(0)",
}


@pytest.mark.integration
@pytest.mark.parametrize("how", EXITS)
def test_a_process_exits_normally(how):
    program = f"""
import sys, threading
sys.path[:0] = {[str(Path(__file__).parent.parent), str(Path(__file__).parent)]!r}
import torch
from test_group import CPU, PATIENCE, Formation, eventually, formations, never
groups = [formation.result(never) for formation in formations(2)]
{EXITS[how]}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=PATIENCE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr
    assert "Fatal" not in done.stderr
