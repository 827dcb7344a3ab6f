"""Texts for exceptions of libraries; each test causes a real fault of a connection."""

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
    """Return a function that starts a server, which runs `behave` on its first connection, and returns its address."""
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


def test_a_truncated_answer_is_a_broken_connection(server: Callable[[Behave], str]) -> None:
    def half(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")

    assert told("http:" + server(half)) == "the connection broke"


def test_a_silent_server_is_a_timeout(server: Callable[[Behave], str]) -> None:
    gone = threading.Event()
    try:
        address = server(lambda connection: (gone.wait(), None)[1])
        assert told("http:" + address, timeout=0.05) == "no data arrived in time"
    finally:
        gone.set()


def test_a_closed_connection_is_a_broken_connection(server: Callable[[Behave], str]) -> None:
    assert told("http:" + server(lambda connection: (connection.recv(4096), None)[1])) == "the connection broke"


def test_a_server_without_tls_is_a_tls_failure(server: Callable[[Behave], str]) -> None:
    def plain(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert told("https:" + server(plain)).startswith("TLS failed")


def test_a_closed_port_refuses_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert told(f"http://127.0.0.1:{port}/?sig=planted") == "it refuses connections"


def test_an_invalid_certificate_is_named() -> None:
    problem = ssl.SSLCertVerificationError(1, "failed")
    problem.verify_message = "self-signed certificate"
    assert in_words(requests.exceptions.SSLError(problem)) == "its certificate is not valid: self-signed certificate"


def test_other_exceptions_have_short_texts() -> None:
    assert in_words(requests.TooManyRedirects("30")) == "too many redirects"
    assert in_words(requests.ConnectionError(socket.gaierror(-2, "x"))) == "its host name is unknown"
    assert in_words(OSError(113, "No route to host")) == "no route to host"
    assert in_words(RuntimeError("what?")) == "the connection failed"
    circle = RuntimeError()
    circle.args = (circle,)
    assert in_words(circle) == "the connection failed"
