"""HTTP and HTTPS, through requests. Every answer must be of the file that the first answer described. A last request
checks that again, because servers read their files while they answer."""

from __future__ import annotations

import posixpath
import re
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from dlicmd.contract.data_sources import PATH_KEYS, URL
from local_backend.data.errors import DataChanged, DataError, DataUnavailable, in_words
from local_backend.data.kind import Field, FileFamily, Kind, SourceFile
from local_backend.data.locations import named, outside, paths_of, plain_path

#: Bytes of a piece. If the connection breaks, the received bytes of a piece are lost.
_PIECE = 1 << 18
_PATIENCE_S = (10, 30)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class Web(FileFamily):
    """Files of a web server. The server does not list its files: the location names each."""

    keys = (URL, *PATH_KEYS)

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        super().__init__(kind, values)
        self._threads = threading.local()

    def test(self) -> None:
        self.reach(self._base())
        with self._answer(self._base(), {"Range": "bytes=0-0"}):
            pass

    def check(self, location: Mapping[str, Any]) -> None:
        """Also raise DataError for a query: users see locations, and a query may be a signature."""
        super().check(location)
        for place in (*named(location), str(location.get(URL, ""))):
            if "?" in place:
                raise DataError("a path contains a query ('?...'), but users can see paths; give the query to the "
                                "connection as its secret 'query'")
        self._named(location)

    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]:
        self.reach(self._base())
        for url, path in self._named(location):
            yield self._entry(url, path)

    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        whole = start == 0 and end is None
        wanted = {} if whole else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        with self._answer(file.key, wanted) as answer, self._told(file.key):
            if _version(answer) != file.version:
                raise DataChanged(f"{_shown(file.key)} changed while it was read")
            if not whole:
                given = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if answer.status_code != 206 or given is None or int(given[1]) != start:
                    raise DataUnavailable(f"{_shown(file.key)} can no longer be read in parts")
            yield from answer.iter_content(_PIECE)

    def confirm(self, file: SourceFile) -> None:
        if file.version or file.size is not None:
            try:
                found = self._entry(file.key, file.path)
            except DataUnavailable:
                raise
            except DataError:
                # A signature may have expired since, or may permit a limited number of calls: this says nothing about
                # the file.
                if self.values.get("query"):
                    return
                raise
            if (found.version, found.size) != (file.version, file.size):
                raise DataChanged(f"{_shown(file.key)} changed while it was read")

    def storage(self) -> tuple[str, dict[str, Any]]:
        if self.values.get("query"):
            raise DataError("programs cannot stream from a connection with a secret 'query'; remove 'access' to "
                            "download the files")
        found: dict[str, Any] = {}
        if self.values.get("token"):
            found["headers"] = {"Authorization": f"Bearer {self.values['token']}"}
        elif self.values.get("username"):
            import base64

            pair = f"{self.values['username']}:{self.values.get('password', '')}".encode()
            found["headers"] = {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return urlsplit(self._base()).scheme, found

    def url(self, file: SourceFile) -> str:
        return file.key

    def _named(self, location: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the address of each file that a location names, and its path for the job. Raises DataError."""
        top = self._base()
        try:
            base = urljoin(f"{top.rstrip('/')}/", str(location[URL])) if location.get(URL) else top
        except ValueError:
            raise DataError(f"'{URL}' of the location is not a valid address") from None
        asked, found = paths_of(location), []
        for path in asked or [""]:
            url = urljoin(f"{base.rstrip('/')}/", quote(path)) if path else base
            # A user of a connection must not be able to send its credentials to another server.
            if urlsplit(url)[:2] != urlsplit(top)[:2]:
                raise DataError(f"{_shown(url)} is not on the server of the connection, {_shown(top)}")
            if not _below(url, top):
                raise outside(_shown(url))
            name = plain_path(path) if len(asked) > 1 else unquote(urlsplit(url).path.rpartition("/")[2])
            if not name:
                raise DataError(f"{_shown(url)} is a folder, and web servers do not list folders; name its files")
            found.append((url, name))
        return found

    def _base(self) -> str:
        url = self.values["url"]
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise DataError(f"{_shown(url)} is not the address of a web server; write https://HOST/PATH")
        return url

    def _entry(self, url: str, path: str) -> SourceFile:
        """Return the entry of a file. A request for one byte shows its length, and whether the server gives parts."""
        with self._answer(url, {"Range": "bytes=0-0"}) as answer:
            given = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status_code == 206 and given is not None and given[3] != "*":
                return SourceFile(path, url, int(given[3]), _version(answer))
            length = answer.headers.get("Content-Length", "")
            known = answer.status_code == 200 and length.isdecimal() and "Content-Encoding" not in answer.headers
            return SourceFile(path, url, int(length) if known else None, _version(answer), ranges=False)

    @contextmanager
    def _answer(self, url: str, headers: Mapping[str, str]) -> Iterator[Any]:
        """Yield the answer to GET before its body is read; close the answer afterwards."""
        with self._told(url):
            answer = self._session().get(self._signed(url), headers=headers, stream=True, timeout=_PATIENCE_S)
        try:
            status = answer.status_code
            # An empty file has no first byte: servers refuse the range. A request without a range gets the file.
            if status == 416 and answer.headers.get("Content-Range", "").endswith("/0"):
                answer.close()
                with self._told(url):
                    answer = self._session().get(self._signed(url), stream=True, timeout=_PATIENCE_S)
            elif status == 416:
                raise DataChanged(f"{_shown(url)} is shorter than when it was listed")
            elif status in (401, 403):
                raise DataError(f"{_shown(url)}: the server denies access with these credentials ({status})")
            elif status >= 300:
                kind = DataUnavailable if status in _PASSING else DataError
                raise kind(f"{_shown(url)}: the server answers {status} {answer.reason}")
            yield answer
        finally:
            answer.close()

    def _signed(self, url: str) -> str:
        query = self.values.get("query", "").removeprefix("?")
        return f"{url}?{query}" if query else url

    def _session(self) -> Any:
        """Return the session of this thread: a session is not made for several threads."""
        import requests

        if not hasattr(self._threads, "session"):
            session: Any = requests.Session()
            session.rebuild_auth = partial(_sent_on, session)
            session.headers["Accept-Encoding"] = "identity"
            token, user = self.values.get("token"), self.values.get("username")
            if token:
                session.auth = lambda request: _bearer(request, token)
            elif user:
                session.auth = (user, self.values.get("password", ""))
            else:
                # Without this, requests would use ~/.netrc of the user that runs the server.
                session.auth = lambda request: request
            self._threads.session = session
        return self._threads.session

    @contextmanager
    def _told(self, url: str) -> Iterator[None]:
        import requests

        try:
            yield
        except (requests.exceptions.SSLError, requests.exceptions.TooManyRedirects) as problem:
            raise DataError(f"{_shown(url)}: {in_words(problem)}") from None
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.InvalidHeader,
                requests.exceptions.MissingSchema) as problem:
            raise DataError(f"{_shown(url)} is not a valid address: {type(problem).__name__}") from None
        except requests.RequestException as problem:
            raise DataUnavailable(f"{_shown(url)} does not answer: {in_words(problem)}") from None


def _sent_on(session: Any, request: Any, answer: Any) -> None:
    """Send no credentials to another server: neither those of the connection, nor those for that server in ~/.netrc.
    The base class would take them from ~/.netrc of the user that runs this server."""
    if session.should_strip_auth(answer.request.url, request.url):
        request.headers.pop("Authorization", None)


def _bearer(request: Any, token: str) -> Any:
    request.headers["Authorization"] = f"Bearer {token}"
    return request


def _version(answer: Any) -> str:
    return str(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")


def _shown(url: str) -> str:
    """Return a URL without its parts that may be secret: password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]


def _below(url: str, top: str) -> bool:
    """Return whether a URL is `top` or below it, in any spelling: on the way to a server `%2e` becomes a dot, and each
    `..` is resolved."""
    path, root = (posixpath.normpath("/" + unquote(urlsplit(one).path).lstrip("/")) for one in (url, top))
    return path == root or path.startswith(f"{root.rstrip('/')}/")


HTTP = Kind(
    "http", "HTTP", Web, tested="Python's http.server with ranges",
    fields=(Field("url", "address of a file, or the address that paths are relative to", required=True,
                  aliases=("host",), schemes=("http", "https")),
            Field("username", "user for basic authentication", aliases=("user",)),
            Field("password", "password of the user", secret=True),
            Field("token", "bearer token", secret=True, aliases=("api_key",)),
            Field("query", "text after the ? of every address, such as a signature", secret=True)),
    aliases=("https", "web"),
)
