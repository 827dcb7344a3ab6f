"""The transport of a request: one interface, and two implementations that are imported when needed.

`PlainTransport` uses one persistent standard-library connection: for the loopback, where a command must start fast.
`dlicmd.sdk.tls.RequestsTransport` does everything else: TLS, proxies, plain http to other machines.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import urlsplit

from dlicmd.contract import wire
from dlicmd.sdk import cancel, hints
from dlicmd.sdk.errors import ConnectFailed, ConnectionLost, ServerError, Unreachable
from dlicmd.sdk.messages import debug

if TYPE_CHECKING:
    import ssl

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 60.0
CHUNK = 2**16
_PROBE_TIMEOUT = 2.0
#: Seconds between two checks of a server that does not answer.
_MIND_EVERY = 1.0
#: The most connections that wait for a next request.
MOST_IDLE = 8
#: The number of bytes from which a line that has not ended is cut.
LONGEST_LINE = 2**20
#: The most bytes of an answer that is read as a whole.
MAX_ANSWER = 2**28


class FilePart(NamedTuple):
    """One file of a multipart body.

    Attributes:
        name: Name of the part, such as `file`.
        filename: Name of the file in the header of the part.
        file: Open binary file. The part begins at its current position. The caller closes the file.
        size: Number of bytes of the part.
    """

    name: str
    filename: str
    file: BinaryIO
    size: int


class Multipart:
    """A multipart/form-data body of known length that is never in memory as a whole.

    An HTTP library needs only `len()`, `read(size)` and `content_type`.

    Attributes:
        content_type: Value of the header `Content-Type`, with the boundary.

    Examples:
        >>> file = open("model.tar", "rb")
        >>> body = Multipart([FilePart("file", "model.tar", file, os.path.getsize("model.tar"))])
    """

    def __init__(
        self, files: Sequence[FilePart], fields: Sequence[tuple[str, str]] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Combine fields and files to one body.

        Args:
            files: Files of the body. Each file must be seekable.
            fields: Name and text of each field. The fields precede the files.
            progress: Function that is called after each read with the number of bytes returned so far, or None.
        """
        boundary = os.urandom(16).hex()
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._progress = progress
        #: Each source with the position of its first byte, and its number of bytes.
        self._sources: list[tuple[BinaryIO, int, int]] = []
        for name, value in fields:
            self._text(f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"\r\n\r\n{value}\r\n')
        for part in files:
            self._text(
                f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(part.name)}"; '
                f'filename="{_quoted(part.filename)}"\r\nContent-Type: application/octet-stream\r\n\r\n'
            )
            self._sources.append((part.file, part.file.tell(), part.size))
            self._text("\r\n")
        self._text(f"--{boundary}--\r\n")
        self._length = sum(size for _, _, size in self._sources)
        self._at = self._sent = 0
        self._left = self._sources[0][2]

    def rewind(self) -> None:
        """Start again, so that the next reads return the same bytes again."""
        for source, start, _ in self._sources:
            source.seek(start)
        self._at = self._sent = 0
        self._left = self._sources[0][2]

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the body.

        Args:
            size: Maximum number of bytes. A negative number stands for the rest of the body.

        Returns:
            The bytes. They are empty only at the end of the body.

        Raises:
            OSError: A file became shorter while it was sent.
        """
        cancel.check()
        if size < 0:
            size = self._length
        pieces = []
        while size > 0 and self._at < len(self._sources):
            piece = self._piece(size)
            pieces.append(piece)
            size -= len(piece)
        data = b"".join(pieces)
        self._sent += len(data)
        if self._progress is not None:
            self._progress(self._sent)
        return data

    def _piece(self, size: int) -> bytes:
        """Return at most `size` bytes of the current source. At its end, go on to the next source."""
        source = self._sources[self._at][0]
        piece = source.read(min(size, self._left))
        if not piece and self._left:
            raise OSError("a file became shorter while it was sent")
        self._left -= len(piece)
        if not self._left:
            self._at += 1
            self._left = self._sources[self._at][2] if self._at < len(self._sources) else 0
        return piece

    def _text(self, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        self._sources.append((io.BytesIO(data), 0, len(data)))


class Request(NamedTuple):
    """One call. `target` is path and query, already percent-encoded. `timeout` is in seconds, between two reads.

    `streamed`: the caller reads the answer in chunks as they arrive. `keyed`: a header of the request makes the server
    execute it once, however often it arrives. `harmless`: a second execution changes nothing, whatever the method.
    `final`: the caller gets a busy server's answer, and the request is not repeated.
    """

    method: str
    target: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | Multipart | None = None
    timeout: float = READ_TIMEOUT
    streamed: bool = False
    keyed: bool = False
    harmless: bool = False
    final: bool = False


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that arrives in pieces, without their newlines. A line that is longer than
    LONGEST_LINE is cut."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) >= LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


class Answer:
    """The answer of a server, read as a whole or in chunks.

    The content of `Client.train_log`, `Client.result` and `Client.task_log` arrives while it is read, and can be read
    once, unless `hold` reads it. The content of all other answers is complete and can be read again.

    Attributes:
        status: HTTP status of the answer.
        headers: Headers by name. The names are lower case.
        repeated: Whether an earlier attempt of the same request may have arrived, and its answer was lost.
    """

    def __init__(self, status: int, headers: Iterable[tuple[str, str]], chunks: Iterator[bytes]) -> None:
        """Wrap an answer of an HTTP library.

        Args:
            status: HTTP status of the answer.
            headers: Name and value of each header.
            chunks: Content of the answer in pieces.
        """
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        #: Whether an earlier attempt of the same request may have arrived, and its answer was lost.
        self.repeated = False
        self._chunks = chunks
        self._held: bytes | None = None

    @property
    def request_id(self) -> str:
        """The name of the request in the log of the server.

        The text is empty unless the server sends printable ASCII of at most 200 characters.
        """
        named = self.headers.get(wire.REQUEST_ID.lower(), "")
        return named if named.isascii() and named.isprintable() and len(named) <= 200 else ""

    @property
    def code(self) -> str:
        """The stable code of an error, such as `exec.not_found`.

        The text is empty for a success, and for a server that sends no codes.
        """
        found = self.headers.get(wire.ERROR_CODE.lower(), "")
        return found if found.isascii() and found.replace(".", "").replace("_", "").isalnum() else ""

    def chunks(self) -> Iterator[bytes]:
        """Return the content in chunks, as they arrive.

        Returns:
            Pieces of bytes. Content that is complete already arrives in one piece.

        Raises:
            ConnectionLost: The connection breaks before the content is complete. The iteration raises this error.
        """
        return self._chunks if self._held is None else iter([self._held])

    def lines(self) -> Iterator[str]:
        """Return the lines of the content, as they arrive.

        Returns:
            Lines without their newlines. Bytes that are not UTF-8 are replaced.

        Raises:
            ConnectionLost: The connection breaks before the content is complete. The iteration raises this error.
        """
        return (line.decode("utf-8", "replace") for line in split_lines(self.chunks()))

    def body(self) -> bytes:
        """Return the whole content.

        Returns:
            The content in bytes.

        Raises:
            ServerError: The content is longer than 256 MiB.
            ConnectionLost: The connection breaks before the content is complete.
        """
        if self._held is not None:
            return self._held
        data = bytearray()
        for chunk in self._chunks:
            data += chunk
            if len(data) > MAX_ANSWER:
                self._chunks = iter(self._refused, b"")  # the rest is not the content
                self._refused()
        return bytes(data)

    def _refused(self) -> bytes:
        raise ServerError(f"the server's answer is longer than {MAX_ANSWER} bytes", self.status)

    def hold(self) -> None:
        """Read the whole content now, so that it can be read again.

        Raises:
            ServerError: The content is longer than 256 MiB.
            ConnectionLost: The connection breaks before the content is complete.
        """
        self._held = self.body()

    def text(self) -> str:
        """Return the whole content as text.

        Returns:
            The content, read as UTF-8. Invalid bytes become replacement characters.

        Raises:
            ServerError: The content is longer than 256 MiB.
            ConnectionLost: The connection breaks before the content is complete.
        """
        return self.body().decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the whole content as a JSON value.

        Returns:
            Dictionaries, lists, texts, numbers, truth values and None.

        Raises:
            ServerError: The content is not JSON, or is longer than 256 MiB.
            ConnectionLost: The connection breaks before the content is complete.
        """
        text = self.body()
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            if not text and not {"content-length", "transfer-encoding"} & self.headers.keys():
                raise ConnectionLost("the connection broke within the headers of the answer") from None
            raise ServerError("the server's answer is not JSON: is this a WMLA server?", self.status) from None


class Transport(Protocol):
    """Sends requests to one server. `is_private` is True if no machine in between can read the traffic."""

    @property
    def is_private(self) -> bool:
        """Whether the traffic is encrypted or stays on this machine."""

    def send(self, request: Request) -> Answer:
        """Return the answer to one attempt, whatever its status. Raises Unreachable."""

    def close(self) -> None:
        """Close all connections."""


class PlainTransport:
    """A transport of http to the loopback over persistent connections. Threads may use it at the same time.

    An answer that is still being read has its connection for itself: a request in the meantime uses another one.
    With `tls` the connection is encrypted, and that context decides which server is accepted.
    """

    is_private = True

    def __init__(
        self, url: str, tls: ssl.SSLContext | None = None, mind: Callable[[], None] | None = None
    ) -> None:
        """`mind` is called before a request, and each second until the answer begins. It raises an error if no answer
        can come."""
        parts = urlsplit(url)
        self._mind = mind
        #: Host and port of the server.
        self.where = parts.netloc
        self._host, self._port = parts.hostname or "", parts.port
        self._tls = tls
        #: Whether the other side has shown that it is a web server.
        self._is_known = False
        #: The connections that wait for the next request. A thread takes one in one step, so no lock is needed.
        self._idle: list[http.client.HTTPConnection] = []
        #: The answers with a connection of their own. An answer that no program can read any more closes itself.
        self._unread: weakref.WeakSet[_Content] = weakref.WeakSet()

    def close(self) -> None:
        """See Transport."""
        for content in list(self._unread):
            content.close()
        while (connection := self._waiting()) is not None:
            connection.close()

    def send(self, request: Request) -> Answer:
        """See Transport."""
        connection = self._connected(request)
        headers = dict(request.headers)
        if isinstance(request.body, Multipart):
            headers["Content-Length"] = str(len(request.body))
        try:
            response = self._exchange(connection, request, headers)
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            no_http = isinstance(problem, http.client.BadStatusLine | ConnectionResetError) and not self._is_known
            if no_http and self._tls is None and speaks_tls(self._host, self._port or 80):
                raise Unreachable(f"{self.where} speaks TLS, not plain http; leave {hints.http()} out") from None
            if _is_foreign(problem):
                raise Unreachable(f"the answer of {self.where} is not HTTP") from None
            raise ConnectionLost(f"the connection to {self.where} broke: {reason(problem)}") from None
        self._is_known = True
        content = _Content(self, connection, response)
        self._unread.add(content)
        return noted(request, Answer(response.status, response.headers.items(), content))

    def complete(self, content: _Content) -> None:
        """Use the connection of a complete answer for the next request, unless enough connections are idle."""
        self._unread.discard(content)
        if len(self._idle) < MOST_IDLE:
            self._idle.append(content.connection)
        else:
            content.connection.close()

    def _waiting(self) -> http.client.HTTPConnection | None:
        """Return an idle connection, which no other thread gets then, or None."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connected(self, request: Request) -> http.client.HTTPConnection:
        """Return the idle connection if the request may be repeated, else a new connection."""
        connection = self._waiting()
        if connection is not None and (request.method != "GET" or _is_dropped(connection.sock)):
            connection.close()
            connection = None
        if connection is None:
            connection = self._opened(min(CONNECT_TIMEOUT, request.timeout))
            try:
                connection.connect()
            except OSError as problem:
                connection.close()
                if getattr(problem, "library", None) == "SSL":
                    # A server answers, but not the expected one: a repetition, or a start of the backend, would not
                    # help.
                    cure = hints.another_server()
                    raise Unreachable(f"no TLS connection to {self.where}: {problem}; {cure}") from None
                raise ConnectFailed(f"cannot reach {self.where}: {reason(problem)}", hints.address()) from None
        connection.sock.settimeout(request.timeout)
        return connection

    def _opened(self, timeout: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout, blocksize=CHUNK)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout, blocksize=CHUNK, context=self._tls
        )

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Request, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        if self._mind is not None:
            self._mind()
        try:
            connection.request(request.method, request.target, request.body, headers)
        except (BrokenPipeError, ConnectionResetError):
            # A server that refuses an upload answers before it has read everything.
            return connection.getresponse()
        if self._mind is not None:
            self._wait(connection.sock, request.timeout, self._mind)
        return connection.getresponse()

    @staticmethod
    def _wait(connection: socket.socket, seconds: float, mind: Callable[[], None]) -> None:
        """Wait for the first byte of the answer, or for the end of the time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([connection], [], [], min(left, _MIND_EVERY))[0]:
                return
            mind()


class _Content(Iterator[bytes]):
    """The content of one answer, in chunks as they arrive. No other request uses its connection before the end."""

    def __init__(
        self, transport: PlainTransport, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self.connection = connection
        self._transport, self._response = transport, response
        self._is_complete = self._is_closed = False

    def __next__(self) -> bytes:
        if self._is_complete:
            raise StopIteration
        cancel.check()
        if self._is_closed:
            raise ConnectionLost(f"the connection to {self._transport.where} was closed before the end of the answer")
        try:
            chunk = self._response.read1(CHUNK)
        except (OSError, http.client.HTTPException) as problem:
            self.close()
            raise ConnectionLost(f"the connection to {self._transport.where} broke: {reason(problem)}") from None
        if chunk:
            return chunk
        if self._response.length:
            self.close()
            raise ConnectionLost(f"{self._transport.where} sent fewer bytes than it announced")
        self._is_complete = True
        self._response.close()
        self._transport.complete(self)
        raise StopIteration

    def close(self) -> None:
        """Close the connection, unless the answer is complete. Later reads raise ConnectionLost."""
        if not self._is_complete:
            self._is_closed = True
            self._response.close()
            self.connection.close()

    def __del__(self) -> None:
        self.close()


def _quoted(name: str) -> str:
    """Return a name as browsers write it into a Content-Disposition header."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def noted(request: Request, answer: Answer) -> Answer:
    """Log the answer for debugging, and return it. The query is left out: that of a submission holds its command
    line."""
    named = f" (request {answer.request_id})" if answer.request_id else ""
    debug(f"{request.method} {request.target.partition('?')[0]} -> {answer.status}{named}")
    return answer


def _is_foreign(problem: BaseException) -> bool:
    """Return whether the answer comes from something other than a web server. The beginning of a status line counts as
    a cut answer of a web server."""
    if isinstance(problem, http.client.RemoteDisconnected) or not isinstance(problem, http.client.BadStatusLine):
        return False
    line = str(problem.args[0])
    return not line.startswith("HTTP/"[: len(line)])


def _is_dropped(idle: socket.socket | None) -> bool:
    """Return whether the server has closed an idle connection: there is something to read, but no request is open."""
    try:
        return idle is None or bool(select.select([idle], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def speaks_tls(host: str, port: int) -> bool:
    """Return whether a server that gave no answer to plain http speaks TLS. Only a TLS handshake is sent."""
    import ssl  # only for this case

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), _PROBE_TIMEOUT) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def lacks_tls(host: str, port: int) -> bool:
    """Return whether a server listens there that does not speak TLS. Only a TLS greeting is sent."""
    try:
        socket.create_connection((host, port), _PROBE_TIMEOUT).close()
    except OSError:
        return False
    return not speaks_tls(host, port)


def reason(problem: BaseException) -> str:
    """Return one short line about a network error."""
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    if isinstance(problem, http.client.RemoteDisconnected):
        return "closed without an answer"
    if isinstance(problem, http.client.HTTPException):
        return "the answer is not HTTP"
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
