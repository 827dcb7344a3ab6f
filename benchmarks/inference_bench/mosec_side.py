"""Mosec: `python mosec_side.py noop|cnn PORT`."""

from __future__ import annotations

import sys
from typing import Any

from mosec import Server, Worker


class Noop(Worker):
    """Answers with its input."""

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        return data


class Images(Worker):
    """Answers with the scores of images, in batches."""

    def __init__(self) -> None:
        super().__init__()
        from network import network

        self.network = network()

    def forward(self, data: list[Any]) -> list[Any]:
        from network import answers

        return [{"scores": one} for one in answers(self.network, [each["data"] for each in data])]


if __name__ == "__main__":
    kind, port = sys.argv[1:3]
    sys.argv[1:] = ["--port", port, "--address", "127.0.0.1", "--log-level", "error", "--timeout", "60000",
                    "--capacity", "4096"]
    server = Server()
    server.append_worker(Noop if kind == "noop" else Images, num=1, max_batch_size=32,
                         **({} if kind == "noop" else {"max_wait_time": 5}))
    server.run()
