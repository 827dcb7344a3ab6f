"""Real kernel processes, written as WMLA's samples are, with a gateway that the tests play."""

from __future__ import annotations

import json
import os
import signal

import pytest
from fake_gateway import KEY, FakeGateway
from support import PATIENCE

from local_backend.inference.kernel import frames

pytestmark = pytest.mark.integration

MAIN = """
if __name__ == "__main__":
    obj = K()
    obj.run()
"""
HEAD = """
import json, os, time
import redhareapiversion
from redhareapi import Kernel
"""
PING_PONG = HEAD + """
class K(Kernel):
    def on_task_invoke(self, task_context):
        while task_context != None:
            input_data = json.loads(task_context.get_input_data())
            task_context.set_output_data(json.dumps(input_data))
            task_context = task_context.next()
""" + MAIN
#: Collects all tasks, and answers them in reverse after it has advanced.
BATCHED = HEAD + """
class K(Kernel):
    def __init__(self):
        self.offset = 0

    def on_kernel_start(self, kernel_context):
        self.offset = 100
        print("started", kernel_context.get_id(), json.loads(kernel_context.get_model_description())["attributes"])

    def on_task_invoke(self, task_context):
        tasks = []
        while task_context != None:
            tasks.append(task_context)
            task_context = task_context.next()
        values = [int(task.get_input_data()) + self.offset for task in tasks]
        for task, value in reversed(list(zip(tasks, values))):
            assert task.set_output_data(f"{value} of {len(tasks)}") is True
        assert [task.prev() for task in tasks] == [None] + tasks[:-1]

    def on_kernel_shutdown(self):
        Kernel.log_info("shut down")
""" + MAIN
MISHAPS = HEAD + """
class K(Kernel):
    def on_task_invoke(self, task_context):
        text = task_context.get_input_data()
        if text == "swallow":
            try:
                raise ValueError(text)
            except ValueError:
                return
        if text == "catch":
            try:
                raise ValueError(text)
            except ValueError as problem:
                task_context.set_output_data(f"Failed due to: {problem}")
                return
        if text == "partly":
            task_context.next().set_output_data("fine")
            raise ValueError("secret")
        if text == "refuse":
            from redhareapi import TaskError
            raise TaskError("The image is too small.", 400)
        task_context.set_output_data("done")
""" + MAIN


def test_ping_pong_answers_what_it_gets(gateway: FakeGateway) -> None:
    gateway.start(PING_PONG)
    side = gateway.accept()
    hello = side.greet()
    assert (hello["version"], hello["key"], hello["kernel"]) == (frames.VERSION, KEY, 3)
    texts = [json.dumps({"data": "é" * size, "seq": size}) for size in (0, 1, 3)]
    assert side.ask(*texts) == texts
    assert [side.ask(text) for text in texts] == [[text] for text in texts]


def test_a_batched_kernel_answers_in_any_order(gateway: FakeGateway) -> None:
    process = gateway.start(BATCHED)
    side = gateway.accept()
    side.greet()
    assert side.ask("1", "2", "3") == ["101 of 3", "102 of 3", "103 of 3"]
    assert side.ask("7") == ["107 of 1"]
    assert process.stdout is not None
    assert process.stdout.readline() == "started 3 [{'key': 'a', 'value': 'b'}]\n"


def test_failures_become_answers(gateway: FakeGateway) -> None:
    gateway.start(MISHAPS)
    side = gateway.accept()
    side.greet()
    assert side.ask("catch") == ["Failed due to: catch"]
    side.send("partly", "x", "y")
    first, second, third = sorted(side.replies(3), key=lambda one: one.id)
    assert (second.body, second.failed) == (b"fine", False)
    assert first.failed and third.failed and b"ValueError" in first.body and b"secret" not in first.body
    side.send("refuse")
    (refused,) = side.replies(1)
    assert refused.failed and refused.body == b"The image is too small." and refused.meta == {"status": 400}
    side.send("swallow", first=50)
    assert side.ask("next") == ["done"]  # and no answer to task 50


def test_a_kernel_that_is_terminated_answers_what_it_has(gateway: FakeGateway) -> None:
    slow = BATCHED.replace("        tasks = []", "        os.read(int(os.environ['GO']), 1)\n        tasks = []")
    read, write = os.pipe()
    process = gateway.start(slow, env={"GO": str(read)}, pass_fds=[read])
    os.close(read)
    side = gateway.accept()
    side.greet()
    side.send("1")
    side.send("2", first=2)
    process.send_signal(signal.SIGTERM)
    side.expect(frames.LEAVING)  # while the kernel computes
    side.send("3", first=3)  # was on its way
    side.socket.sendall(frames.frame(frames.BYE))
    os.write(write, b"123")
    assert side.answers(3) == {1: "101 of 1", 2: "102 of 1", 3: "103 of 1"}
    assert side.receive() is None
    _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "I shut down" in log
    os.close(write)


def test_an_idle_kernel_leaves_without_a_word_of_the_gateway(gateway: FakeGateway) -> None:
    process = gateway.start(PING_PONG)
    side = gateway.accept()
    side.greet()
    process.send_signal(signal.SIGTERM)
    side.expect(frames.LEAVING)
    assert side.receive() is None and process.wait(PATIENCE) == 0


def test_a_kernel_connects_again(gateway: FakeGateway) -> None:
    """After BYE with all answers given, after a lost connection, and when the gateway is away for a while."""
    process = gateway.start(BATCHED)
    side = gateway.accept()
    side.greet()
    side.send("1")
    side.send("2", first=2)
    side.socket.sendall(frames.frame(frames.BYE))
    assert side.answers(2) == {1: "101 of 1", 2: "102 of 1"}
    assert side.receive() is None
    side = gateway.accept()
    side.greet()
    assert side.ask("5") == ["105 of 1"]
    gateway.stop_listening()
    side.socket.close()
    assert process.stderr is not None
    assert "waits for the gateway" in process.stderr.readline()
    gateway.listen()
    side = gateway.accept()
    side.greet()
    assert side.ask("6") == ["106 of 1"]
    process.send_signal(signal.SIGTERM)
    side.expect(frames.LEAVING)
    out, _ = process.communicate(timeout=PATIENCE)
    assert out.count("started") == 1


def test_the_runner_learns_that_a_kernel_is_ready(gateway: FakeGateway) -> None:
    read, write = os.pipe()
    gateway.start(PING_PONG, env={"DLI_READY_FD": str(write)}, pass_fds=[write])
    os.close(write)
    gateway.accept().greet()
    assert os.read(read, 10) == b"1" and os.read(read, 10) == b""
    os.close(read)
