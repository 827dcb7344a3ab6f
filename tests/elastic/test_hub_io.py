"""The hub's sockets: workers that die during their welcome, and workers that the hub dismisses."""

import socket
import struct

import pytest
import torch
from support import PATIENCE

from local_backend.elastic.driver.hub_server import HubServer
from local_backend.elastic.errors import Dismissed, HubGone
from local_backend.elastic.frames import receive_frame, send_frame
from local_backend.elastic.hub.events import Arrived, Lost
from local_backend.elastic.worker.control import ControlThread, Link


def connect(server, worker):
    host, _, port = server.address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    send_frame(connection, {"worker": worker, "key": server.expect(worker)})
    return connection


def test_a_worker_that_dies_during_its_welcome_is_reported_as_lost():
    # More bytes than any socket buffers: the hub is still sending the welcome when the connection is reset.
    server = HubServer({"op": "welcome"}, bytes(64 << 20))
    try:
        doomed = connect(server, 1)
        doomed.recv(1)
        doomed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        doomed.close()
        assert server.inbox.get(timeout=PATIENCE) == Lost(1)
        with connect(server, 2) as other:
            assert receive_frame(other)[0] == {"op": "welcome"}
            assert server.inbox.get(timeout=PATIENCE) == Arrived(2)
    finally:
        server.close()


def test_an_invalid_message_is_an_error_that_names_the_worker():
    server = HubServer({"op": "welcome"}, b"")
    try:
        with connect(server, 3) as worker:
            receive_frame(worker)
            assert server.inbox.get(timeout=PATIENCE) == Arrived(3)
            send_frame(worker, {"op": "nonsense"})
            problem = server.inbox.get(timeout=PATIENCE)
            assert str(problem) == "worker 3 sent an invalid message: KeyError('nonsense')"
            assert server.inbox.get(timeout=PATIENCE) == Lost(3)
    finally:
        server.close()


def test_present_and_late_workers_learn_that_the_job_is_over():
    server = HubServer({"op": "welcome"}, b"")
    try:
        here = Link(1, server.address, server.expect(1))
        assert here.receive()[0] == {"op": "welcome"}
        assert server.inbox.get(timeout=PATIENCE) == Arrived(1)
        key = server.expect(2)
        server.dismiss()
        late = Link(2, server.address, key)
        for link in (here, late):
            with pytest.raises(Dismissed):
                link.receive()
            link.close()
        assert {server.inbox.get(timeout=PATIENCE) for _ in range(2)} == {Lost(1), Lost(2)}
    finally:
        server.close()


def test_a_dismissed_worker_gets_the_end_of_its_welcome_first():
    server = HubServer({"op": "welcome"}, bytes(64 << 20))
    try:
        with connect(server, 1) as worker:
            first = worker.recv(1, socket.MSG_PEEK)
            server.dismiss()
            assert first and receive_frame(worker)[0] == {"op": "welcome"}
            assert receive_frame(worker)[0] == {"op": "over"}
    finally:
        server.close()


@pytest.mark.parametrize(("last_word", "kind"), [("dismiss", Dismissed), ("close", HubGone)])
def test_a_failed_send_raises_the_reason_of_the_hub(last_word, kind):
    """The sending thread of a worker may be faster than its listening thread."""
    server = HubServer({"op": "welcome"}, b"")
    try:
        link = Link(1, server.address, server.expect(1))
        link.receive()
        assert server.inbox.get(timeout=PATIENCE) == Arrived(1)
        control = ControlThread(1, link, torch.device("cpu"))
        getattr(server, last_word)()
        control.start()
        assert type(control.why_gone()) is kind
        with pytest.raises(kind):
            control.order("bye")
        link.close()
    finally:
        server.close()
