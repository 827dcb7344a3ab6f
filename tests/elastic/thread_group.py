"""The interface of elastic.group.Group between threads of this process."""

import threading

import torch
from support import PATIENCE


class Board:
    """What the members of one group share."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size)
        self.posts = {}


class ThreadGroup:
    generation = 1

    def __init__(self, rank, board):
        self.rank, self.size = rank, board.size
        self._board = board
        #: Sizes of the tensors that were all-reduced, in order.
        self.reduced = []

    def _exchange(self, post, read):
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
        gathered.copy_(self._exchange(chunk, torch.cat))

    def all_reduce_start(self, tensor):
        self.reduced.append(len(tensor))
        return Later(lambda: tensor.copy_(self._exchange(tensor.clone(), lambda posts: torch.stack(posts).sum(0))))


class Later:
    """A collective that happens when it is waited for."""

    def __init__(self, work):
        self._work = work

    def wait(self):
        self._work()
