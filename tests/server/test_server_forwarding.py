"""Metrics reach the targets of --cs-url-meta and --cs-rmq-meta despite faulty receivers, and no secret is shown."""

from __future__ import annotations

import json
import re
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live_server import Answer, Live, settings_for
from metrics_receiver import Receiver, receiving
from support import eventually

from dlicmd.contract.states import FINISHED, KILLED, PENDING, RUNNING
from local_backend.elastic.api.emetrics import EMetrics
from local_backend.forward import orders, source
from local_backend.forward import rest as rest_module
from local_backend.forward.channel import Trouble
from local_backend.forward.forwarder import Pace
from local_backend.forward.rest import RestChannel
from local_backend.forward.service import Forwarding
from local_backend.forward.source import LONGEST, SourceLine, read
from local_backend.forward.target import Rest, Targets

FAST = Pace(look=0.02, first=0.02, longest=0.05, drain=3600.0)
START = "--exec-start PyTorch --model-main main.py "
BROKER = "host=127.0.0.1,user=metrics,password=br0ker-pw,exchange=runs,routing_key=metrics"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("forwarding") / "home"))
    yield running
    running.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def live(home: Live) -> Iterator[Live]:
    """A server that forwards with short pauses."""
    served(home, FAST)
    yield home
    home.services.forwarding.close()


def served(live: Live, pace: Pace) -> None:
    """Forward as a server does after its start."""
    forwarding = Forwarding(live.settings.paths, live.database, loopback=True, pace=pace)
    live.forward_by(forwarding)


def running(live: Live, receiver: Receiver | None, more: str = "") -> str:
    """Submit an exec whose metrics go to the receiver, and move it to running."""
    exec_id = live.submitted(START + (f"--cs-url-meta {receiver.url} " if receiver else "") + more)
    live.move(exec_id, PENDING, RUNNING)
    return exec_id


def log_dir(live: Live, exec_id: str, task: str = "task12n-1") -> Path:
    folder = live.paths(exec_id).log_dir(task)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(live: Live, exec_id: str, text: str, task: str = "task12n-1", sub: str = "") -> None:
    folder = log_dir(live, exec_id, task) / sub
    folder.mkdir(exist_ok=True)
    with open(folder / "evaluation-metrics.txt", "a", encoding="utf-8") as file:
        file.write(text)


def lines(*numbers: int) -> str:
    return "".join(json.dumps({"n": number}) + "\n" for number in numbers)


def numbers(receiver: Receiver) -> list[int]:
    return [metric["n"] for metric in receiver.metrics]


def launcher_log(live: Live, exec_id: str) -> str:
    path = live.paths(exec_id).launcher_log
    return path.read_text(encoding="utf-8") if path.exists() else ""


def all_sent(live: Live, exec_id: str) -> None:
    order = live.settings.paths.order(exec_id)
    eventually(lambda: not order.exists(), f"everything of {exec_id} is sent")
    eventually(lambda: not list(order.parent.glob(f"{exec_id}.*")), "no file of the forwarded metrics is left")


def test_metrics_of_emetrics_arrive_while_the_exec_runs(
    live: Live, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    exec_id = running(live, receiver, "--cs-url-bearer t0ken")
    monkeypatch.setenv("LOG_DIR", str(log_dir(live, exec_id)))
    with EMetrics.open() as metrics:
        metrics.record(EMetrics.TRAIN_GROUP, 7, {"loss": 0.25})
        eventually(lambda: receiver.taken, "the metric arrives")
    (item,) = receiver.taken
    assert item["metric"]["values"] == {"loss": {"type": 3, "value": "0.25"}}
    assert item["metric"]["etimes"]["iteration"] == {"type": 2, "value": "7"} and item["offset"] == 0
    assert item["source"].endswith("/evaluation-metrics.txt") and item["source"].startswith(f"app.{exec_id}-task12n-")
    assert receiver.bodies[0]["execId"] == exec_id and receiver.headers[0]["Authorization"] == "Bearer t0ken"
    with EMetrics.open(subId="2") as metrics:
        metrics.record(EMetrics.TEST_GROUP, None, {"accuracy": float("nan")})
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert receiver.metrics[1]["meta"]["subid"] == "2"


def test_a_repetition_forwards_its_metrics_to_the_same_targets(live: Live, receiver: Receiver) -> None:
    first = running(live, receiver, "--cs-url-bearer t0ken")

    def again() -> Answer:
        return live.call("POST", f"/execs/{first}/again", b"{}", {"Content-Type": "application/json"})

    second = again().json()["id"]  # the token is still there
    live.move(second, PENDING, RUNNING)
    write(live, second, lines(1))
    eventually(lambda: numbers(receiver) == [1], "the lines of the repetition arrive")
    assert receiver.headers[0]["Authorization"] == "Bearer t0ken"
    for one in (first, second):
        live.move(one, FINISHED)
        all_sent(live, one)
    assert again().error == (400, "again.credentials")


def test_a_failing_receiver_gets_every_line_in_the_end(live: Live, receiver: Receiver) -> None:
    receiver.answers = [500, "garbage", "cut", 503, 302, 401, 429]
    exec_id = running(live, receiver)
    write(live, exec_id, lines(1, 2, 3))
    eventually(lambda: numbers(receiver) == [1, 2, 3], "the lines arrive")
    write(live, exec_id, lines(4))
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert numbers(receiver) == [1, 2, 3, 4]
    log = launcher_log(live, exec_id)
    assert log.count("cannot send metrics to") == 1 and "again" in log and "500" in log


def test_a_receiver_that_starts_later_gets_the_lines(live: Live) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    exec_id = live.submitted(START + f"--cs-url-meta=http://127.0.0.1:{port}/in")
    live.move(exec_id, PENDING, RUNNING)
    write(live, exec_id, lines(1))
    eventually(lambda: "cannot send" in launcher_log(live, exec_id), "the server has tried to send metrics")
    live.move(exec_id, KILLED)
    with receiving() as late:
        # Another program may use the port of the first receiver by now, so the order is changed to the second one.
        live.services.forwarding.close()
        paths = live.settings.paths
        order = orders.find(paths, exec_id)
        assert order is not None
        orders.place(paths, replace(order, targets=Targets(Rest(late.url))))
        served(live, FAST)
        all_sent(live, exec_id)
        assert numbers(late) == [1]


def test_a_silent_receiver_does_not_delay_other_execs(live: Live, receiver: Receiver) -> None:
    with receiving() as silent:
        silent.answers = ["silent"]
        slow, fast = running(live, silent), running(live, receiver)
        write(live, slow, lines(1))
        eventually(lambda: silent.bodies, "the receiver gets a request")
        write(live, fast, lines(2))
        live.move(fast, FINISHED)
        all_sent(live, fast)
        assert live.call("GET", f"/execs/{slow}").json()["state"] == RUNNING
        live.move(slow, KILLED)
        silent.released.set()
        all_sent(live, slow)


def test_a_batch_has_a_total_timeout(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_module, "CONNECT", 3600.0)  # The timeout of one piece.
    receiver.answers = ["silent"]
    channel = RestChannel(Rest(receiver.url), "local-1", loopback=True, whole=0.05)
    with pytest.raises(Trouble):
        channel.send([SourceLine("f", 0, 9, {})])


def test_a_refused_line_is_left_out_and_the_others_are_sent(live: Live, receiver: Receiver) -> None:
    receiver.always = lambda body: 422 if any(item["metric"]["n"] == 3 for item in body["metrics"]) else 200
    exec_id = running(live, receiver)
    write(live, exec_id, lines(1, 2, 3, 4, 5))
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert numbers(receiver) == [1, 2, 4, 5]
    assert "dropped a line" in launcher_log(live, exec_id)


def test_lines_that_are_not_metrics_are_left_out(live: Live, receiver: Receiver) -> None:
    exec_id = running(live, receiver)
    write(live, exec_id, lines(1) + 'no json\n[1]\n\n{"n": \n' + "[" * 100_000 + "\n" + lines(2) + '{"n": 3}')
    eventually(lambda: numbers(receiver) == [1, 2], "the metrics arrive")
    live.move(exec_id, FINISHED)  # After the end of the exec, the last line counts without a line end.
    all_sent(live, exec_id)
    assert numbers(receiver) == [1, 2, 3] and "not metrics" in launcher_log(live, exec_id)


def test_the_next_server_continues_after_the_last_line_sent(live: Live, receiver: Receiver) -> None:
    exec_id = running(live, receiver)
    write(live, exec_id, lines(1, 2))
    noted = live.settings.paths.forwarded(exec_id, "rest")
    eventually(noted.exists, "the position in the metrics is stored")
    live.services.forwarding.close()
    write(live, exec_id, lines(3))
    write(live, exec_id, lines(4), task="task12n-2")
    live.move(exec_id, FINISHED)
    served(live, FAST)
    all_sent(live, exec_id)
    assert sorted(numbers(receiver)) == [1, 2, 3, 4]


def test_forwarding_ends_a_bounded_time_after_the_exec(live: Live, receiver: Receiver) -> None:
    live.services.forwarding.close()
    served(live, Pace(look=0.02, first=0.02, longest=0.02, drain=0.2))
    receiver.always = lambda _: 503
    exec_id = running(live, receiver)
    write(live, exec_id, lines(1))
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert "dropped" in launcher_log(live, exec_id) and not receiver.taken


def test_a_file_that_cannot_be_read_is_read_later(
    live: Live, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[Exception] = [OSError("disk"), ZeroDivisionError()]

    def fails_at_first(*args: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return read(*args)

    monkeypatch.setattr(source, "read", fails_at_first)
    exec_id = running(live, receiver)
    write(live, exec_id, lines(1))
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert numbers(receiver) == [1] and not troubles


def test_a_file_that_can_never_be_read_is_given_up_after_the_end(
    live: Live, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("disk")

    monkeypatch.setattr(source, "read", fails)
    live.services.forwarding.close()
    served(live, Pace(look=0.02, first=0.02, longest=0.02, drain=0.2))
    exec_id = running(live, receiver)
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert not receiver.taken


def test_a_deleted_exec_leaves_no_forwarding_files(live: Live, receiver: Receiver) -> None:
    exec_id = running(live, receiver)
    assert live.call("DELETE", f"/execs/{exec_id}").status == 204
    all_sent(live, exec_id)
    live.services.forwarding.close()
    live.settings.paths.forwarded(exec_id, "rest").write_text("{}")  # As a batch in progress would leave it.
    served(live, FAST)
    assert not list(live.settings.paths.forwarding.glob(f"{exec_id}*"))


def test_no_secret_is_shown_or_left(live: Live, receiver: Receiver, stub_pika: list[Any]) -> None:
    receiver.always = lambda _: 500
    exec_id = running(live, receiver, f"--cs-url-bearer s3cret-token --cs-rmq-meta {BROKER}")
    write(live, exec_id, lines(1))
    eventually(lambda: "cannot send" in launcher_log(live, exec_id), "the server has tried to send metrics")
    order = live.settings.paths.order(exec_id)
    assert "s3cret-token" not in order.read_text() and stat.S_IMODE(order.stat().st_mode) == 0o600
    shown = live.call("GET", f"/execs/{exec_id}").text + live.call("GET", "/execs").text
    assert "--cs-url-bearer ***" in shown and "password=***,exchange=runs" in shown
    stored = [path.read_bytes() for path in live.settings.home.rglob("*") if path.is_file() and path != order]
    for secret in ("s3cret-token", "br0ker-pw"):
        assert secret not in shown and not any(secret.encode() in content for content in stored)
    live.move(exec_id, KILLED)
    live.call("DELETE", f"/execs/{exec_id}")
    all_sent(live, exec_id)


@pytest.mark.parametrize(("words", "said"), [
    ("--cs-url-meta ftp://h/x", "--cs-url-meta: .*https://"),
    ("--cs-url-meta http://", "--cs-url-meta: .*host"),
    ("--cs-url-meta https://h:x/", "--cs-url-meta: .*port"),
    ("--cs-url-meta https://u:hidden@h/", "--cs-url-bearer"),
    ("--cs-url-meta http://h.example/ --cs-url-bearer hidden", "unencrypted"),
    ("--cs-url-meta https://h/ --cs-url-bearer 'hid den'", "--cs-url-bearer"),
    ("--cs-rmq-meta amqp://u:hi/dden@h/", "--cs-rmq-meta: .*port"),
    ("--cs-rmq-meta http://h/", "amqps:// or amqp://"),
    ("--cs-rmq-meta host=h,password=hidden", "exchange or the queue"),
    ("--cs-rmq-meta host=h,queue=q,password=hid,den", "NAME=VALUE"),
    ("--cs-rmq-meta host=h,queue=q,hue=1", "'hue'.*host"),
    ("--cs-rmq-meta host=h,queue=q,port=0", "port"),
    ("--cs-rmq-meta queue=q", "host"),
])
def test_an_invalid_target_is_refused(live: Live, stub_pika: list[Any], words: str, said: str) -> None:
    answer = live.submit(START + words, {"main.py": b""})
    assert answer.error == (400, "submission.metrics") and re.search(said, answer.text), answer
    assert "hidden" not in answer.text and "dden" not in answer.text


def test_a_broker_without_pika_is_refused_with_advice(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    answer = live.submit(START + f"--cs-rmq-meta {BROKER}", {"main.py": b""})
    assert answer.error == (400, "submission.metrics") and "dlicmd[rabbitmq]" in answer.text


PIKA = '''
import types
published, parameters, trouble = [], [], []
class AMQPError(Exception): pass
class NackError(AMQPError): pass
class UnroutableError(AMQPError): pass
class StackTimeout(Exception): pass
exceptions = types.SimpleNamespace(AMQPError=AMQPError, NackError=NackError, UnroutableError=UnroutableError,
                                   StackTimeout=StackTimeout)
class Kept:
    def __init__(self, *args, **values):
        self.args, self.__dict__ = args, {**values, "args": args}
BasicProperties = ConnectionParameters = PlainCredentials = SSLOptions = Kept
class BlockingConnection:
    def __init__(self, given):
        parameters.extend(given)
    def channel(self):
        return self
    def confirm_delivery(self):
        self.confirms = True
    def basic_publish(self, exchange, routing_key, body, properties, mandatory):
        assert self.confirms and mandatory
        if trouble:
            raise getattr(exceptions, trouble.pop(0))()
        published.append((exchange, routing_key, body, properties))
    def close(self):
        pass
'''


@pytest.fixture
def stub_pika(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A stub of the module pika that records its calls. test_server_rabbitmq.py uses a real broker."""
    (tmp_path / "pika.py").write_text(PIKA)
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "pika"}
    import pika

    yield pika
    del sys.modules["pika"]
    sys.modules.update(kept)


def test_a_broker_gets_a_message_for_each_line(live: Live, stub_pika: Any) -> None:
    stub_pika.trouble += ["AMQPError", "UnroutableError", "StackTimeout"]
    exec_id = running(live, None, f"--cs-rmq-meta {BROKER}")
    write(live, exec_id, lines(1, 2))
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert [json.loads(body) for _, _, body, _ in stub_pika.published] == [{"n": 1}, {"n": 2}]
    exchange, key, _, properties = stub_pika.published[1]
    assert (exchange, key, properties.delivery_mode) == ("runs", "metrics", 2)
    assert properties.message_id == f"{exec_id}:{properties.headers['source']}:9"
    found = stub_pika.parameters[-1]
    assert (found.host, found.port, found.virtual_host) == ("127.0.0.1", 5672, "/")
    assert found.credentials.args == ("metrics", "br0ker-pw") and found.ssl_options is None


def test_lines_that_the_broker_has_are_not_sent_again(live: Live, stub_pika: Any) -> None:
    class Once(list):
        """Failures of the stub that occur at the second message."""

        def __bool__(self) -> bool:
            return len(stub_pika.published) == 1 and len(self) > 0

    stub_pika.trouble = Once(["AMQPError", "NackError"])
    exec_id = running(live, None, "--cs-rmq-meta amqps://u:p%2F@localhost:5671/v%2F1?queue=q")
    write(live, exec_id, lines(1, 2, 3))
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    assert [json.loads(body)["n"] for _, _, body, _ in stub_pika.published] == [1, 2, 3]
    found = stub_pika.parameters[-1]
    assert found.virtual_host == "v/1" and found.credentials.args == ("u", "p/")
    assert found.ssl_options.args[1] == "localhost"


def test_a_program_cannot_forward_other_files_through_links(tmp_path: Path) -> None:
    secret, logs = tmp_path / "secret", tmp_path / "logs"
    (secret).mkdir()
    (secret / "evaluation-metrics.txt").write_text(lines(1))
    (logs / "app.a").mkdir(parents=True)
    (logs / "app.b").symlink_to(secret)
    (logs / "app.a" / "sub").symlink_to(secret)
    (logs / "app.a" / "evaluation-metrics.txt").symlink_to(secret / "evaluation-metrics.txt")
    assert read(logs, {}, 10, True).lines == []
    assert read(tmp_path / "nothing", {}, 10, True).lines == []


def test_an_endless_line_is_skipped_and_a_restarted_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "app.a").mkdir()
    file = tmp_path / "app.a" / "evaluation-metrics.txt"
    file.write_text("x" * (LONGEST + 10) + "\n" + lines(1))
    first = read(tmp_path, {}, 10, False)
    assert not first.lines and first.skipped == LONGEST
    second = read(tmp_path, first.offsets, 10, False)
    assert [line.metric for line in second.lines] == [{"n": 1}]
    file.write_text(lines(2))
    assert [line.metric for line in read(tmp_path, second.offsets, 10, False).lines] == [{"n": 2}]
    file.write_text(lines(*range(20)))
    batch = read(tmp_path, {}, 7, False)
    assert [line.metric["n"] for line in batch.lines] == list(range(7)) and batch.lines[-1].end == batch.offsets[
        batch.lines[0].source]


def test_the_thread_of_an_exec_ends_with_it(live: Live, receiver: Receiver) -> None:
    exec_id = running(live, receiver)
    write(live, exec_id, lines(1))
    eventually(lambda: receiver.taken, "the receiver gets a metric")
    live.move(exec_id, FINISHED)
    all_sent(live, exec_id)
    eventually(lambda: not any(one.name.endswith(exec_id) for one in threading.enumerate()), "the thread has ended")
