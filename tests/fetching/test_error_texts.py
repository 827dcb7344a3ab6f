"""Exceptions of libraries, in words for people: each is what really happens to a connection."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
import requests

from local_backend.data.errors import in_words

Behave = Callable[[socket.socket], None]


@pytest.fixture
def server() -> Iterator[Callable[[Behave], str]]:
    """Starts a server that does something to its first connection; its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(behave: Behave) -> str:
        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                behave(connection)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"//127.0.0.1:{listening.getsockname()[1]}/a?sig=planted"

    yield start
    for thread in threads:
        thread.join()
    listening.close()


def told(url: str, **more: object) -> str:
    with pytest.raises(requests.RequestException) as caught:
        requests.get(url, **more)  # type: ignore[arg-type]
    words = in_words(caught.value)
    assert "planted" not in words and "Error" not in words
    return words


def test_a_connection_that_breaks_off(server: Callable[[Behave], str]) -> None:
    def half(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")

    assert told("http:" + server(half)) == "the connection broke"


def test_one_that_says_nothing(server: Callable[[Behave], str]) -> None:
    gone = threading.Event()
    try:
        address = server(lambda connection: (gone.wait(), None)[1])
        assert told("http:" + address, timeout=0.05) == "no data arrived in time"
    finally:
        gone.set()


def test_one_that_hangs_up(server: Callable[[Behave], str]) -> None:
    assert told("http:" + server(lambda connection: (connection.recv(4096), None)[1])) == "the connection broke"


def test_one_that_speaks_no_tls(server: Callable[[Behave], str]) -> None:
    def plain(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert told("https:" + server(plain)).startswith("TLS failed")


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert told(f"http://127.0.0.1:{port}/?sig=planted") == "it refuses connections"


def test_a_certificate_that_is_no_good() -> None:
    problem = ssl.SSLCertVerificationError(1, "failed")
    problem.verify_message = "self-signed certificate"
    assert in_words(requests.exceptions.SSLError(problem)) == "its certificate is not valid: self-signed certificate"


def test_others() -> None:
    assert in_words(requests.TooManyRedirects("30")) == "too many redirects"
    assert in_words(requests.ConnectionError(socket.gaierror(-2, "x"))) == "its host name is unknown"
    assert in_words(OSError(113, "No route to host")) == "no route to host"
    assert in_words(RuntimeError("what?")) == "the connection failed"
    circle = RuntimeError()
    circle.args = (circle,)
    assert in_words(circle) == "the connection failed"
