"""Members of a generation as threads of this process, with the interface of elastic.group.Group; a difficult model."""

import threading

import torch
from support import PATIENCE
from torch import nn

from local_backend.elastic.collective.reduce import Layout, make_reducer
from local_backend.elastic.errors import GroupBroken


class Board:
    """The state that the members of one group share."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size)
        self.posts = {}


class ThreadGroup:
    generation = 1

    def __init__(self, rank, board):
        self.rank, self.size = rank, board.size
        self._board = board
        self._left = None
        #: Sizes of the all-reduced tensors, in order of their start.
        self.reduced = []

    def breaks_after(self, collectives):
        """Make all collectives after the next `collectives` ones raise GroupBroken."""
        self._left = collectives

    def _exchange(self, post, read):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise GroupBroken("as asked")
        self._board.posts[self.rank] = post
        self._board.barrier.wait(PATIENCE)
        result = read([self._board.posts[member] for member in range(self.size)])
        self._board.barrier.wait(PATIENCE)
        return result

    def all_to_all(self, received, sent, in_sizes, out_sizes):
        parts = self._exchange(sent.split(list(out_sizes)), lambda posts: [post[self.rank].clone() for post in posts])
        assert [len(part) for part in parts] == list(in_sizes)
        received.copy_(torch.cat(parts))

    def all_gather(self, gathered, chunk):
        gathered.copy_(self._exchange(chunk.clone(), torch.cat))

    def all_reduce_start(self, tensor):
        self.reduced.append(len(tensor))
        # Clone now, as a real collective may already be sending: later writes into the tensor must not count.
        now = tensor.clone()
        return Later(lambda: tensor.copy_(self._exchange(now, lambda posts: torch.stack(posts).sum(0))))


class Later:
    """A collective that runs when a caller waits for it."""

    def __init__(self, work):
        self._work = work

    def wait(self):
        self._work()


def members(size, work):
    """Run `work(group)` in each of `size` members and return the results by rank.

    Raises the first error of a member.
    """
    board = Board(size)
    results, failures = [None] * size, []

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


def the_same(make):
    """Make a model with the same weights in every thread; the threads share one random number generator."""
    with _alone:
        torch.manual_seed(0)
        return make()


_alone = threading.Lock()


class Branches(nn.Module):
    """A model with one parameter of each difficult kind.

    Some shards use the first parameter, no shard uses the second, one is frozen, and one has another memory format. The
    model also has statistics, counters and constants.
    """

    def __init__(self):
        super().__init__()
        self.fabric_buffers = {"hidden": "mean"}
        self.norm = nn.BatchNorm1d(5)
        self.used = nn.Linear(5, 3)
        self.sometimes = nn.Linear(5, 3)
        self.never = nn.Linear(5, 3)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.register_buffer("constant", torch.tensor([0.1, float("-inf"), 3.3]))
        self.register_buffer("table", torch.arange(100))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)

    def forward(self, x, sometimes):
        pixels = torch.linspace(0, 1, 27).view(1, 3, 3, 3) * x.mean()
        x = self.norm(self.frozen(x))
        self.hidden += x.detach().mean()
        return self.used(x) + (self.sometimes(x) if sometimes else 0) + 0.1 * self.conv(pixels).sum()


def train(mode, ranges, steps=3, active=None, own=True):
    """Return every replica after some steps, with one member per range of shards. `own`: the engine runs backward."""
    torch.set_num_threads(1)
    active = active or ranges[-1][1]

    def work(group):
        model = the_same(Branches)
        layout = Layout([model], torch.optim.SGD(model.parameters(), 0.1))
        reducer = make_reducer(mode, layout, group)
        first, last = ranges[group.rank]
        for number in range(steps):
            shards = range(first, min(last, active))
            step = reducer.begin_step(ranges, active, shards)
            for shard in shards:
                step.begin_shard(shard)
                x = torch.randn(4, 5, generator=torch.Generator().manual_seed(number * 100 + shard))
                loss = model(x, shard == 1).square().mean()
                if own:
                    step.backward(shard, loss, 1 / active)
                else:
                    loss.backward()
                step.end_shard(shard, 1 / active)
            step.finish(0)
            with torch.no_grad():
                for parameter in layout.parameters:
                    if parameter.grad is not None:
                        parameter.sub_(0.1 * parameter.grad)
        return model

    return members(len(ranges), work)
