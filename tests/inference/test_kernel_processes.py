"""Real kernel processes, written as WMLA's samples are, with a gateway that the tests play."""

from __future__ import annotations

import json
import os
import re
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
            if task_context.next() != None:
                task_context.next().set_output_data("fine")
            raise ValueError("secret")
        if text == "fail":
            raise ValueError
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
    side.send("partly", "x", "partly")
    first, second, third = sorted(side.replies(3), key=lambda one: one.id)
    assert (second.body, second.failed) == (b"fine", False)
    assert first.failed and third.failed and b"ValueError" in first.body and b"secret" not in first.body
    side.send("fail", "x", "fail", "y")
    found = {one.id: (one.body, one.failed) for one in side.replies(4)}
    assert found[2] == found[4] == (b"done", False), "a bad request fails alone"
    assert found[1][1] and found[3][1]
    side.send(*["fail"] * 9, first=20)
    assert all(one.failed for one in side.replies(9))
    side.send("refuse")
    (refused,) = side.replies(1)
    assert refused.failed and refused.body == b"The image is too small." and refused.meta == {"status": 400}
    side.send("swallow", first=50)
    assert side.ask("next") == ["done"]  # and no answer to task 50


def test_a_hook_that_is_a_coroutine_is_an_error(gateway: FakeGateway) -> None:
    gateway.start(HEAD + "class K(Kernel):\n    async def on_task_invoke(self, task):\n        pass\n" + MAIN)
    side = gateway.accept()
    side.greet()
    side.send("x")
    assert side.replies(1)[0].failed


def test_no_task_is_run_twice_if_the_profile_forbids_it(gateway: FakeGateway) -> None:
    gateway.start(MISHAPS)
    side = gateway.accept()
    side.greet(retry=False)
    side.send("fail", "x")
    assert all(one.failed for one in side.replies(2))


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


def test_an_idle_kernel_that_is_terminated_answers_what_is_on_its_way(gateway: FakeGateway) -> None:
    process = gateway.start(PING_PONG)
    side = gateway.accept()
    side.greet()
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    for number in (1, 2):
        side.send("{}", first=number)
    side.socket.sendall(frames.frame(frames.BYE))
    process.send_signal(signal.SIGCONT)
    found = []
    while (one := side.receive()) is not None:
        found.append(one[0])
    assert found.count(frames.REPLY) == 2
    assert set(found) <= {frames.REPLY, frames.LEAVING}  # after BYE, LEAVING says nothing new
    assert process.wait(PATIENCE) == 0


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


def test_a_kernel_loads_its_model_while_the_gateway_looks_up_its_key(gateway: FakeGateway) -> None:
    process = gateway.start(BATCHED)
    side = gateway.accept()
    side.expect(frames.HELLO)
    assert process.stdout is not None and process.stdout.readline().startswith("started")
    side.socket.sendall(frames.json_frame(frames.WELCOME, {}))
    side.expect(frames.READY)
    assert side.ask("1") == ["101 of 1"]


def test_a_kernel_that_is_refused_tries_again(gateway: FakeGateway) -> None:
    gateway.start(PING_PONG)
    for _ in range(3):
        side = gateway.accept()
        side.expect(frames.HELLO)
        side.socket.close()
    gateway.accept().greet()


def test_the_runner_learns_that_a_kernel_is_ready(gateway: FakeGateway) -> None:
    read, write = os.pipe()
    gateway.start(PING_PONG, env={"DLI_READY_FD": str(write)}, pass_fds=[write])
    os.close(write)
    gateway.accept().greet()
    assert os.read(read, 10) == b"1" and os.read(read, 10) == b""
    os.close(read)


STREAMS = HEAD + """
class K(Kernel):
    def on_task_invoke(self, task_context):
        text = task_context.get_input_data()
        if text == "ended":
            task_context.send("a")
            task_context.set_output_data("b")
            return None
        if text == "endless":
            return self.endless(task_context)
        return self.parts(task_context)

    def parts(self, task):
        yield "1"
        while task != None:
            yield task, task.get_input_data()
            task = task.next()

    def endless(self, task):
        task.set_output_meta("text/x")
        while True:
            yield "x"
""" + MAIN


def test_answers_are_streamed(gateway: FakeGateway) -> None:
    gateway.start(STREAMS)
    side = gateway.accept()
    side.greet()
    side.send("ended")
    assert [(one.body, one.more) for one in side.replies(2)] == [(b"a", True), (b"b", False)]
    side.send("p", "q", first=5)
    found = [(one.id, one.body, one.more) for one in side.replies(5)]
    assert found == [(5, b"1", True), (5, b"p", True), (6, b"q", True), (5, b"", False), (6, b"", False)]
    side.send("endless", first=9)
    first, second = side.replies(2)
    assert first.meta == {"content_type": "text/x"} and second.meta == {}
    side.socket.sendall(frames.cancel(9))
    while side.replies(1)[0].more:  # until the kernel notices
        pass
    side.send("ended", first=10)
    assert [(one.id, one.body) for one in side.replies(2)] == [(10, b"a"), (10, b"b")]


def test_a_cancelled_task_that_has_not_begun_is_skipped(gateway: FakeGateway) -> None:
    read, write = os.pipe()
    slow = BATCHED.replace("        tasks = []", "        os.read(int(os.environ['GO']), 1)\n        tasks = []")
    gateway.start(slow, env={"GO": str(read)}, pass_fds=[read])
    os.close(read)
    side = gateway.accept()
    side.greet()
    side.send("1")
    side.send("2", "3", first=2)
    side.send("4", first=4)
    side.socket.sendall(frames.cancel(2) + frames.cancel(4))
    os.write(write, b"123")
    found = {one.id: one for one in side.replies(4)}
    assert found[2].failed and found[4].failed
    assert found[1].body == b"101 of 1" and found[3].body == b"103 of 1"
    os.close(write)


def test_batches_run_at_the_same_time(gateway: FakeGateway) -> None:
    """Two calls wait for each other."""
    gateway.start(HEAD + """
import threading
meet = threading.Barrier(2)
class K(Kernel):
    def on_task_invoke(self, task_context):
        meet.wait()
        task_context.set_output_data(threading.current_thread().name)
""" + MAIN)
    side = gateway.accept()
    side.greet(parallel_size=2)
    for first in (1, 3):
        side.send("x", first=first)
        side.send("x", first=first + 1)
        assert len(set(side.answers(2).values())) == 2


def test_answers_may_come_after_the_call(gateway: FakeGateway) -> None:
    gateway.start(HEAD + """
class K(Kernel):
    waiting = []
    def on_task_invoke(self, task_context):
        self.waiting.append(task_context)
        if task_context.get_input_data() == "all":
            for task in self.waiting:
                task.set_output_data(task.get_input_data())
""" + MAIN)
    side = gateway.accept()
    side.greet(unanswered=True)
    side.send("early")
    assert frames.unanswered_of(side.expect(frames.UNANSWERED)) == [1]
    side.send("all", first=2)
    assert side.answers(2) == {1: "early", 2: "all"}


def test_a_task_tells_what_it_is(gateway: FakeGateway) -> None:
    gateway.start(HEAD + """
class K(Kernel):
    def on_kernel_start(self, kernel_context):
        self.context = kernel_context

    def on_task_invoke(self, task):
        task.set_output_data_extend(task.get_input_data_extend() + json.dumps([
            task.get_id(), task.get_session_id(), task.get_job_id(), task.get_model_name(), task.get_version(),
            task.get_uuid() == task.get_uuid(), self.context.get_id(), self.context.get_instance_id(), os.getcwd(),
        ]).encode())
""" + MAIN)
    side = gateway.accept()
    side.greet()
    side.send(b"\xff", session="s")
    (reply,) = side.replies(1)
    assert reply.body[:1] == b"\xff"
    assert json.loads(reply.body[1:]) == [
        "1", "s", "edi-pong-7", "pong", "4", True, "3", "edi-pong-7-3", str(gateway.folder / "model")]


def test_bytes_that_are_no_text_come_back_unchanged(gateway: FakeGateway) -> None:
    gateway.start(PING_PONG.replace("json.loads(task_context.get_input_data())", "task_context.get_input_data()")
                  .replace("json.dumps(input_data)", "input_data"))
    side = gateway.accept()
    side.greet()
    bodies = [bytes(range(256)), b"", b"\xed\xa0\x80", b"x" * (1 << 21)]
    side.send(*bodies)
    assert [one.body for one in sorted(side.replies(4), key=lambda one: one.id)] == bodies


def test_the_log_has_the_format_of_wmla(gateway: FakeGateway) -> None:
    process = gateway.start(HEAD + """
class K(Kernel):
    def on_kernel_start(self, kernel_context):
        Kernel.log(0, "plain")
        self.log_debug("hidden")
        self.log_warn("warned")
        self.log_error("wrong")
        print("printed")
""" + MAIN, env={"DLIM_MK_LOG_LEVEL": "WARN"})
    gateway.accept().greet()
    process.terminate()
    out, log = process.communicate(timeout=PATIENCE)
    assert out == "printed\n"
    assert [re.sub(r"\d", "9", line) for line in log.splitlines()] == [
        "9999-99-99 99:99:99.999999: W warned", "9999-99-99 99:99:99.999999: E wrong"]


def test_a_kernel_file_needs_no_main(gateway: FakeGateway) -> None:
    gateway.start(PING_PONG.replace(MAIN, ""))
    side = gateway.accept()
    side.greet()
    assert side.ask("{}") == ["{}"]


@pytest.mark.parametrize(("kernel", "status"), [
    ("x = 1", 2), ("from redhareapi import Kernel\nclass A(Kernel): pass\nclass B(Kernel): pass", 2),
    ("import no_such_module", 1), ("def broken(:", 1), (None, 2),
    (HEAD + "class K(Kernel):\n    def on_kernel_start(self, c):\n        raise ValueError('weights')\n" + MAIN, 1),
])
def test_a_kernel_that_cannot_start_ends_with_a_reason(gateway: FakeGateway, kernel: str | None, status: int) -> None:
    process = gateway.start(kernel)
    _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == status and ": E " in log


def test_a_kernel_can_end_itself(gateway: FakeGateway) -> None:
    """Its connection ends, so that the gateway gives its task to another kernel."""
    process = gateway.start(HEAD + """
class K(Kernel):
    def on_task_invoke(self, task_context):
        raise SystemExit(7)
""" + MAIN)
    side = gateway.accept()
    side.greet()
    side.send("x")
    assert side.receive() is None and process.wait(PATIENCE) == 7


def test_a_process_that_a_kernel_forks_does_not_hold_the_connection(gateway: FakeGateway) -> None:
    process = gateway.start(HEAD + """
class K(Kernel):
    def on_task_invoke(self, task_context):
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        task_context.set_output_data(str(child))
""" + MAIN)
    side = gateway.accept()
    side.greet()
    (child,) = side.ask("x")
    process.kill()
    assert side.receive() is None
    os.kill(int(child), signal.SIGKILL)


def test_a_kernel_without_a_gateway_ends_when_it_is_terminated(gateway: FakeGateway) -> None:
    gateway.stop_listening()
    process = gateway.start(PING_PONG)
    assert process.stderr is not None
    process.stderr.readline()  # it waits for the gateway
    process.terminate()
    assert process.wait(PATIENCE) == 0
