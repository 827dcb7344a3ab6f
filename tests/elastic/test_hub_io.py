"""The hub's sockets: workers that are gone before they are welcome."""

import socket
import struct

from support import PATIENCE

from local_backend.elastic.events import Arrived, Lost
from local_backend.elastic.frames import receive_frame, send_frame
from local_backend.elastic.hub_io import HubServer


def connect(server, worker):
    host, _, port = server.address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    send_frame(connection, {"worker": worker, "key": server.expect(worker)})
    return connection


def test_a_worker_that_dies_while_it_is_welcomed_is_lost_and_no_more():
    # More than any socket holds: the welcome is on its way when the connection is reset.
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


def test_nonsense_is_an_error_that_names_the_worker():
    server = HubServer({"op": "welcome"}, b"")
    try:
        with connect(server, 3) as worker:
            receive_frame(worker)
            assert server.inbox.get(timeout=PATIENCE) == Arrived(3)
            send_frame(worker, {"op": "nonsense"})
            problem = server.inbox.get(timeout=PATIENCE)
            assert str(problem) == "worker 3 sent what makes no sense: KeyError('nonsense')"
            assert server.inbox.get(timeout=PATIENCE) == Lost(3)
    finally:
        server.close()
