"""A kernel that speaks frames, and does what its requests say. Also a program: fake_kernel.py SOCKET KEY NUMBER.

A request is echoed, unless it is a JSON object with `do`: see `FakeKernel.answer`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from local_backend.inference.kernel import frames
from local_backend.inference.kernel.frames import KernelTask, Reply


class FakeKernel:
    """One kernel; `run` returns when `stop` is set or the gateway refuses it `tries` times."""

    def __init__(self, path: str, key: str, number: int = 1, *, ready: bool = True) -> None:
        self.path, self.key, self.number = path, key, number
        self.ready = threading.Event()
        if ready:
            self.ready.set()
        self.stop = threading.Event()
        #: Sizes of batches, ids of cancelled tasks, and bodies in the order of arrival.
        self.batches: list[int] = []
        self.cancelled: list[int] = []
        self.tasks: list[KernelTask] = []
        self.welcomes = 0
        #: What the last WELCOME said, and how often the gateway said BYE.
        self.welcome: dict[str, Any] = {}
        self.byes = 0
        self.connection: socket.socket | None = None

    def start(self) -> FakeKernel:
        """Run in a thread."""
        threading.Thread(target=self.run, daemon=True).start()
        return self

    def run(self) -> None:
        """Connect again and again, and answer."""
        while not self.stop.is_set():
            try:
                with socket.socket(socket.AF_UNIX) as self.connection:
                    self.connection.connect(self.path)
                    self.serve(self.connection)
            except OSError:
                pass
            self.stop.wait(0.02)

    def close(self) -> None:
        """End without a word."""
        self.stop.set()
        if self.connection is not None:
            try:
                self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def serve(self, link: socket.socket) -> None:
        """Answer the batches of one connection until it ends."""
        reader = frames.FrameReader()
        hello = {"version": frames.VERSION, "key": self.key, "kernel": self.number, "pid": os.getpid()}
        link.sendall(frames.json_frame(frames.HELLO, hello))
        while data := link.recv(1 << 20):
            for kind, payload in reader.feed(data):
                if kind == frames.WELCOME:
                    self.welcomes += 1
                    self.welcome = frames.object_of(payload)
                    self.ready.wait()
                    link.sendall(frames.frame(frames.READY))
                elif kind == frames.BATCH:
                    found = list(frames.tasks_of(payload))
                    self.batches.append(len(found))
                    self.tasks += found
                    for task in found:
                        self.answer(link, task)
                elif kind == frames.CANCEL:
                    self.cancelled.append(frames.cancelled(payload))
                elif kind == frames.BYE:
                    self.byes += 1
                    return

    def answer(self, link: socket.socket, task: KernelTask) -> None:
        """Do what a task says."""
        if "header_length" in task.meta:
            link.sendall(oip_reply(task))
            return
        try:
            order = json.loads(task.body)
        except ValueError:
            order = None
        word = order.get("do", "echo") if isinstance(order, dict) else "echo"
        if word == "die":
            os._exit(9)
        elif word == "garbage":
            link.sendall(b"\0\0\0\x02\xff\xff" * 10)
        elif word == "swallow":
            link.sendall(frames.unanswered([task.id]))
        elif word == "leave":
            link.sendall(frames.frame(frames.LEAVING))
        elif word == "sleep":
            time.sleep(order["seconds"])
        for one in self.replies(task, word, order):
            link.sendall(frames.reply(one))

    def replies(self, task: KernelTask, word: str, order: Any) -> Iterator[Reply]:
        """Yield the replies to a task."""
        if word in ("echo", "sleep"):
            yield Reply(task.id, task.body)
        elif word == "text":
            yield Reply(task.id, order["text"].encode(), meta=order.get("meta", {}))
        elif word == "meta":
            yield Reply(task.id, json.dumps(task.meta).encode())
        elif word == "who":
            yield Reply(task.id, json.dumps([self.key, self.number, os.getpid()]).encode())
        elif word == "leave":
            yield Reply(task.id, b"bye")
        elif word == "fail":
            yield Reply(task.id, b"it does not work", failed=True, meta=order.get("meta", {}))
        elif word == "stream":
            for part in order["parts"]:
                yield Reply(task.id, part.encode(), more=True)
            fails = order.get("fails", False)
            yield Reply(task.id, b"too bad" if fails else b"", failed=fails)


def oip_reply(task: KernelTask) -> bytes:
    """Return the frames of an answer of the Open Inference Protocol whose outputs are the inputs.

    The request may have the parameters `times` (answers of a stream before the last, empty one) and `json`.
    """
    length = task.meta["header_length"]
    about = json.loads(task.body[:length])
    parameters = about.get("parameters", {})
    answer = {"id": about.get("id", ""), "outputs": about["inputs"], "model_name": "m"}
    if "json" in parameters:
        answer["outputs"] = [{"name": "y", "datatype": "INT32", "shape": [2, 2], "data": [[1, 2], [3, 4]]},
                             {"name": "z", "datatype": "BYTES", "shape": [2], "data": ["a", "bc"]}]
        return frames.reply(Reply(task.id, json.dumps(answer).encode()))
    header = json.dumps(answer).encode()
    body, meta = header + task.body[length:], {"header_length": len(header)}
    if "times" in parameters:
        part = frames.reply(Reply(task.id, body, more=True, meta=meta))
        return part * parameters["times"] + frames.reply(Reply(task.id, b""))
    return frames.reply(Reply(task.id, body, meta=meta))


if __name__ == "__main__":
    FakeKernel(sys.argv[1], sys.argv[2], int(sys.argv[3])).run()
