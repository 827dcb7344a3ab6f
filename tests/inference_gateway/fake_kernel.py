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
                    return

    def answer(self, link: socket.socket, task: KernelTask) -> None:
        """Do what a task says."""
        try:
            order = json.loads(task.body)
        except ValueError:
            order = None
        word = order.get("do", "echo") if isinstance(order, dict) else "echo"
        if word == "echo":
            link.sendall(frames.reply(Reply(task.id, task.body)))
        elif word == "sleep":
            time.sleep(order["seconds"])
            link.sendall(frames.reply(Reply(task.id, task.body)))
        elif word == "text":
            link.sendall(frames.reply(Reply(task.id, order["text"].encode(), meta=order.get("meta", {}))))
        elif word == "meta":
            link.sendall(frames.reply(Reply(task.id, json.dumps(task.meta).encode())))
        elif word == "fail":
            link.sendall(frames.reply(Reply(task.id, b"it does not work", failed=True)))
        elif word == "stream":
            for part in order["parts"]:
                link.sendall(frames.reply(Reply(task.id, part.encode(), more=True)))
            if order.get("fails"):
                link.sendall(frames.reply(Reply(task.id, b"too bad", failed=True)))
            else:
                link.sendall(frames.reply(Reply(task.id, b"")))
        elif word == "who":
            link.sendall(frames.reply(Reply(task.id, json.dumps([self.key, self.number, os.getpid()]).encode())))
        elif word == "die":
            os._exit(9)
        elif word == "garbage":
            link.sendall(b"\0\0\0\x02\xff\xff" * 10)
        elif word == "oip":
            link.sendall(frames.reply(oip_reply(task, order)))
        elif word != "silent":
            raise AssertionError(word)


def oip_reply(task: KernelTask, order: dict[str, object]) -> Reply:
    """Return an answer of the Open Inference Protocol whose outputs are the inputs."""
    return Reply(task.id, json.dumps({"id": order.get("id", ""), "outputs": order["inputs"]}).encode())


if __name__ == "__main__":
    FakeKernel(sys.argv[1], sys.argv[2], int(sys.argv[3])).run()
