"""Metrics forwarded to a real RabbitMQ that accepts them, refuses them or has no space for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_server import Live, settings_for
from support import eventually

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend import network
from local_backend.forward import rabbitmq
from local_backend.forward.forwarder import Pace
from local_backend.forward.service import Forwarding

if TYPE_CHECKING:
    from rabbit_server import Rabbit

pytestmark = pytest.mark.integration

FAST = Pace(look=0.02, first=0.02, longest=0.05, drain=3600.0)
PASSWORD = "br0ker-pw"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("rabbitmq") / "home"))
    yield running
    running.close()


@pytest.fixture
def live(home: Live) -> Iterator[Live]:
    """A server that forwards with short pauses."""
    forwarding = Forwarding(home.settings.paths, home.database, loopback=True, pace=FAST)
    home.forward_by(forwarding)
    yield home
    forwarding.close()


def plain(broker: Rabbit, rest: str, password: str = PASSWORD) -> str:
    return f"amqp://metrics:{password}@127.0.0.1:{broker.port}{rest}"


def running(live: Live, place: str, *texts: str) -> str:
    """Submit an exec with these texts as losses, forwarded to that place, and move it to running."""
    exec_id = live.submitted(f"--exec-start PyTorch --model-main main.py --cs-rmq-meta {place}")
    live.move(exec_id, PENDING, RUNNING)
    write(live, exec_id, *texts)
    return exec_id


def write(live: Live, exec_id: str, *texts: str) -> None:
    folder = live.paths(exec_id).log_dir("task12n-1")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "evaluation-metrics.txt", "a", encoding="utf-8") as file:
        file.writelines(json.dumps({"loss": text}) + "\n" for text in texts)


def said(live: Live, exec_id: str) -> str:
    path = live.paths(exec_id).launcher_log
    return path.read_text(encoding="utf-8") if path.exists() else ""


def all_sent(live: Live, exec_id: str) -> None:
    live.move(exec_id, FINISHED)
    eventually(lambda: not live.settings.paths.order(exec_id).exists(), f"everything of {exec_id} is sent")


def losses(broker: Rabbit, queue: str) -> list[str]:
    return [json.loads(body)["loss"] for _, body in broker.take(queue)]


def test_a_queue_gets_a_message_for_each_line(live: Live, broker: Rabbit) -> None:
    broker.declare("direct")
    exec_id = running(live, plain(broker, "?queue=direct"), *(str(number) for number in range(700)))
    all_sent(live, exec_id)
    found = broker.take("direct")
    assert [json.loads(body) for _, body in found] == [{"loss": str(number)} for number in range(700)]
    first, second = found[0][0], found[1][0]
    assert (first.content_type, first.delivery_mode, first.app_id) == ("application/json", 2, "dlicmd")
    assert first.headers == {"execId": exec_id, "source": first.headers["source"], "offset": 0}
    assert first.message_id == f"{exec_id}:{first.headers['source']}:0"
    assert second.headers["offset"] == len(json.dumps({"loss": "0"})) + 1


@pytest.mark.parametrize(("rest", "password", "words"), [
    ("?queue=none-such", PASSWORD, "the broker has no queue for the message"),
    ("?exchange=none-such", PASSWORD, "no exchange 'none-such'"),
    ("/none-such?queue=q", PASSWORD, "the broker refuses the user access to this vhost"),
    ("?queue=q", "wr0ng-pw", "the broker refuses the user or the password"),
])
def test_an_error_of_the_broker_is_logged_once_and_can_be_fixed_later(
    live: Live, broker: Rabbit, rest: str, password: str, words: str
) -> None:
    exec_id = running(live, plain(broker, rest, password), "1")
    eventually(lambda: words in said(live, exec_id), "the error is logged")
    assert live.call("GET", f"/execs/{exec_id}").json()["state"] == RUNNING
    if words.startswith("the broker has no queue"):
        broker.declare("none-such")
        all_sent(live, exec_id)
        assert losses(broker, "none-such") == ["1"]
    log = said(live, exec_id)
    assert log.count("cannot send metrics to") == 1 and password not in log
    assert live.call("DELETE", f"/execs/{exec_id}").status in (204, 200)


def test_lines_wait_for_space_in_a_full_queue(live: Live, broker: Rabbit) -> None:
    broker.declare("full", **{"x-max-length": 2, "x-overflow": "reject-publish"})
    exec_id = running(live, plain(broker, "?queue=full"), "1", "2", "3", "4", "5")
    eventually(lambda: "may be full" in said(live, exec_id), "the full queue is logged")
    live.move(exec_id, FINISHED)
    found: list[str] = []
    eventually(lambda: found.extend(losses(broker, "full")) or len(found) == 5, "all lines arrive in order")
    assert found == ["1", "2", "3", "4", "5"] and "dropped" not in said(live, exec_id)


def test_a_message_that_is_too_large_is_left_out(live: Live, broker: Rabbit) -> None:
    broker.declare("small")
    exec_id = running(live, plain(broker, "?queue=small"), "1", "x" * 200_000, "3")
    all_sent(live, exec_id)
    assert losses(broker, "small") == ["1", "3"]
    assert "dropped a line" in said(live, exec_id) and "larger" in said(live, exec_id)


def test_a_broker_without_memory_gets_the_lines_later(
    live: Live, broker: Rabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq, "CONNECT", 2.0)  # The server gives up sooner.
    broker.declare("blocked")
    broker.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        exec_id = running(live, plain(broker, "?queue=blocked"), "1")
        eventually(lambda: "memory" in said(live, exec_id), "the shortage of the broker is logged")
        assert losses(broker, "blocked") == []
    finally:
        broker.control("set_vm_memory_high_watermark", "0.4")
    monkeypatch.undo()
    all_sent(live, exec_id)
    # A message that was on its way when its sender gave up may come twice. Its message id shows the duplicate.
    found = broker.take("blocked")
    assert found and {(one.message_id, body) for one, body in found} == {(found[0][0].message_id, b'{"loss": "1"}')}


def test_a_certificate_must_be_of_a_known_authority(
    live: Live, broker: Rabbit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker.declare("secure")
    place = f"amqps://metrics:{PASSWORD}@localhost:{broker.tls_port}?queue=secure"
    (tmp_path / "none.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    exec_id = running(live, place, "1")
    eventually(lambda: "unable to get local issuer" in said(live, exec_id), "the TLS error is logged")
    monkeypatch.setenv("SSL_CERT_FILE", str(broker.authority))
    all_sent(live, exec_id)
    assert losses(broker, "secure") == ["1"]


def test_every_address_of_a_name_is_tried(live: Live, broker: Rabbit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "permitted_addresses", lambda *_: ["127.0.0.2", "127.0.0.1"])
    broker.declare("second")
    exec_id = running(live, plain(broker, "?queue=second"), "1")
    all_sent(live, exec_id)
    assert losses(broker, "second") == ["1"] and said(live, exec_id).count("cannot send metrics") == 0
