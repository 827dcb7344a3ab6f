"""The runner channel as an elastic program uses it: the driver of these tests writes and reads raw messages."""

from __future__ import annotations

import json
import socket
import textwrap

import pytest
from runtime_support import Bench
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, RUNNING
from local_backend.runtime import launcher_log
from local_backend.runtime.channel import Channel

PROLOGUE = """
    import json, os, socket, sys, time
    link = socket.socket(fileno=int(os.environ["DLI_RUNNER_FD"]))
    lines = link.makefile("r")
    def say(**message):
        link.sendall(json.dumps(message).encode() + b"\\n")
    def hear():
        return json.loads(lines.readline())
"""
SPAWN = """
    say(op="hello")
    allocation = hear()
    server = socket.create_server(("127.0.0.1", 0))
    address = "127.0.0.1:%d" % server.getsockname()[1]
    say(op="spawn", worker=1, slot=allocation["slots"][-1]["id"], address=address, key="ab")
"""
ELASTIC = {"framework": "edtPyTorch", "elastic": True}


def elastic(bench: Bench, program: str, **spec: object) -> str:
    return bench.submit(textwrap.dedent(PROLOGUE) + textwrap.dedent(program), **{**ELASTIC, "num_worker": 3, **spec})


@pytest.fixture(params=["warm", "cold"])
def any_bench(request: pytest.FixtureRequest) -> Bench:
    found: Bench = request.getfixturevalue(request.param)
    return found


def test_the_driver_gets_its_allocation(any_bench: Bench) -> None:
    one = elastic(
        any_bench, "say(op='hello')\nprint(json.dumps(hear()), os.environ['DLI_IS_DRIVER'])\n",
        attributes={"mode": "fast"},
    )
    assert any_bench.wait(one).state == FINISHED, any_bench.output(one, "stderr", "task0")
    answer, _, is_driver = any_bench.output(one, task="task0").rpartition(" ")
    slots = [{"id": "cpu-0", "kind": "cpu"}, {"id": "cpu-1", "kind": "cpu"}]
    assert json.loads(answer) == {
        "event": "allocation", "slots": slots, "max_workers": 3, "attributes": {"mode": "fast"},
        "next_worker": 1, "rest": None,
    }
    assert is_driver == "true\n"


@pytest.mark.integration
def test_a_worker_is_started_and_killed_on_demand(any_bench: Bench) -> None:
    program = SPAWN + """
    peer, _ = server.accept()
    say(op="kill", worker=1)
    print(json.dumps(hear()))
    """
    one = elastic(any_bench, program)
    row = any_bench.wait(one)
    assert row.state == FINISHED, any_bench.output(one, "stderr", "task0") + any_bench.output(one, "stderr")
    event = json.loads(any_bench.output(one, task="task0"))
    assert event.pop("pid") > 0
    assert event == {"event": "exited", "worker": 1, "exit_code": None, "signal": 9, "reason": None}


def test_an_invalid_message_is_answered_or_logged(cold: Bench) -> None:
    program = """
    link.sendall(b"not json\\n[1]\\n")
    say(op="fly")
    say(op="spawn", worker=1, slot="gpu-7", address="127.0.0.1:1", key="ab")
    print(hear()["reason"])
    say(op="spawn", worker=0, slot="cpu-0", address="127.0.0.1:1", key="ab")
    print(hear()["reason"])
    say(op="kill", worker=5)
    say(op="history", text="epoch 1 done\\nand more")
    """
    one = elastic(cold, program)
    assert cold.wait(one).state == FINISHED, cold.output(one, "stderr", "task0")
    reasons = "slot 'gpu-7' is not in the allocation\nthe number of the worker is out of range\n"
    assert cold.output(one, task="task0") == reasons
    log = cold.launcher_log(one)
    assert "ignored an unknown message" in log
    assert "runner: epoch 1 done and more\n" in log


def test_the_last_progress_reaches_the_server_and_stays(cold: Bench) -> None:
    program = """
    for step in range(200):
        say(op="progress", epoch=1, epochs=2, step=step, loss=0.5, junk="x" * 1000)
    while not os.path.exists("go"):
        time.sleep(0.02)
    """
    one = elastic(cold, program)
    eventually(lambda: cold.told(one, wire.STEP) == 199, "the server stores the last value")
    expected = {wire.WORKERS: 0, wire.EPOCH: 1, wire.EPOCHS: 2, wire.STEP: 199, wire.LOSS: 0.5}
    live = cold.supervisor.live(one)  # type: ignore[attr-defined]
    assert live is not None and live.progress == expected
    assert cold.row(one).state == RUNNING
    (cold.paths(one).code(cold.row(one).workload) / "go").touch()
    assert json.loads(cold.wait(one).progress or "") == expected
    # The supervisor drops the live values after it stores the end of the job.
    eventually(lambda: cold.supervisor.live(one) is None, "no live value is left")  # type: ignore[attr-defined]


def test_a_count_below_zero_is_not_progress(cold: Bench) -> None:
    one = elastic(cold, """
    say(op="progress", workers=2, step=1, loss=-0.5)
    say(op="progress", workers=-5, step=-3, deaths=-1, secondsLeft=float("inf"), loss=-0.25)
    """)
    assert cold.wait(one).state == FINISHED
    assert json.loads(cold.row(one).progress or "") == {wire.WORKERS: 2, wire.STEP: 1, wire.LOSS: -0.25}


def test_messages_of_a_program_fill_the_launcher_log_up_to_its_limit(cold: Bench) -> None:
    one = elastic(cold, """
    for _ in range(3000):
        say(op="history", text="x" * 3900)
    """)
    assert cold.wait(one).state == FINISHED
    log = cold.paths(one).launcher_log
    assert launcher_log.MOST <= log.stat().st_size < launcher_log.MOST + 10_000
    assert any("runner: ended FINISHED" in line for line in log.read_text().splitlines()[-5:])


@pytest.mark.integration
def test_a_failing_driver_ends_the_job_and_its_workers(any_bench: Bench) -> None:
    one = elastic(any_bench, SPAWN + "    server.accept()\n    raise RuntimeError('driver down')\n")
    row = any_bench.wait(one)
    assert (row.state, row.message) == (ERROR, "RuntimeError: driver down")
    assert not any_bench.leftovers(one)


def test_an_elastic_job_starts_with_one_free_slot(cold: Bench) -> None:
    first = cold.submit("import time\ntime.sleep(600)\n")
    cold.wait_running(first)
    one = elastic(cold, "say(op='hello')\nprint(len(hear()['slots']))\n")
    assert cold.wait(one).state == FINISHED
    assert cold.output(one, task="task0") == "1\n"
    cold.stop(first)
    cold.wait(first)


def test_lines_are_read_whole_even_if_they_arrive_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours.detach())
    with theirs:
        theirs.sendall(b'{"op":"he')
        assert channel.receive() == []
        theirs.sendall(b'llo"}\nnonsense\n{"op":')
        assert channel.receive() == [{"op": "hello"}]
        theirs.sendall(b"1}\n")
        assert channel.receive() == [{"op": 1}]
    assert channel.receive() == []
    assert not channel.open


def test_a_driver_that_does_not_read_does_not_block_the_runner() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours.detach())
    for number in range(5000):
        channel.send({"event": "exited", "worker": number, "pad": "x" * 200})
    assert channel.wants_to_write
    with theirs:
        received = b""
        while received.count(b"\n") < 5000:
            received += theirs.recv(1 << 20)
            channel.flush()
    assert [json.loads(line)["worker"] for line in received.splitlines()] == list(range(5000))
    channel.close()
