"""Cloudant, and CouchDB, whose protocol it speaks: a database of documents, or the documents that a selector finds."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from dlicmd.contract import strict_json
from dlicmd.contract.data_sources import DATABASE_NAME, QUERY
from local_backend.data.columns import batches
from local_backend.data.errors import DataError, DataUnavailable, in_words
from local_backend.data.kind import Extent, Field, Kind, SourceTable, TableFamily
from local_backend.data.kinds import iam
from local_backend.data.kinds.documents import SAMPLE, Documents

if TYPE_CHECKING:
    import pyarrow
    import requests

_PATIENCE = (10, 60)
#: Documents of one answer, which is in memory as a whole.
_PAGE = 200
#: Parameters that find the documents with programs of the database, by their ids.
_DESIGNS = {"start_key": '"_design/"', "end_key": '"_design0"'}

_NO_SELECTOR = "'query' is not a selector, such as {\"age\": {\"$gt\": 20}}"


class Cloudant(TableFamily):
    """Documents come page by page, in the order of their ids. If a document changes meanwhile, either version is
    read."""

    keys = (DATABASE_NAME, QUERY)
    databases = (DATABASE_NAME,)

    def check(self, location: Mapping[str, Any]) -> None:
        self.check_keys(location)
        _selector(location.get(QUERY))

    @staticmethod
    def typed(name: str) -> dict[str, str]:
        return {DATABASE_NAME: name}

    def test(self) -> None:
        with self._session() as session:
            self._ask(session, "GET", "")

    def table(self, location: Mapping[str, Any]) -> SourceTable:
        with self._session() as session:
            about = self._ask(session, "GET", "")
            documents = Documents(itertools.islice(self._found(session, location), SAMPLE))
        return SourceTable(documents.schema, str(about.get("update_seq", "")))

    def batches(self, location: Mapping[str, Any], most_rows: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        with self._session() as session:
            found = self._found(session, location)
            sample = list(itertools.islice(found, SAMPLE))
            documents = Documents(sample)
            rows = itertools.islice(itertools.chain(sample, found), most_rows)
            yield from batches(lambda wish: [documents.row(one) for one in itertools.islice(rows, wish)],
                               documents.schema)

    def extent(self, location: Mapping[str, Any], seconds: float) -> Extent:
        with self._session() as session:
            if (selector := _selector(location.get("query"))) is not None:
                return Extent(self._count(session, selector, time.monotonic() + seconds))
            about = self._ask(session, "GET", "")
            designs = self._ask(session, "GET", "/_all_docs", params=_DESIGNS).get("rows", [])
        return Extent(about["doc_count"] - len(designs), size=about.get("sizes", {}).get("external"))

    def _count(self, session: requests.Session, selector: dict[str, Any], end: float) -> int | None:
        """Return the number of documents that a selector finds; None if reading them takes longer than until `end`."""
        count = 0
        for page in self._selected(session, selector):
            if time.monotonic() > end:
                return None
            count += sum(not _is_design(document) for document in page)
        return count

    def _found(self, session: requests.Session, location: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        selector = _selector(location.get("query"))
        pages = self._all(session) if selector is None else self._selected(session, selector)
        for document in itertools.chain.from_iterable(pages):
            if not _is_design(document):
                yield document

    def _all(self, session: requests.Session) -> Iterator[list[dict[str, Any]]]:
        after: dict[str, Any] = {}
        while True:
            answer = self._ask(session, "GET", "/_all_docs", params={"include_docs": "true", "limit": _PAGE, **after})
            rows = answer.get("rows", [])
            if not rows:
                return
            yield [row["doc"] for row in rows if row.get("doc")]
            after = {"start_key": json.dumps(rows[-1]["key"]), "skip": 1}

    def _selected(self, session: requests.Session, selector: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
        on: dict[str, Any] = {}
        read = 0
        while True:
            answer = self._ask(session, "POST", "/_find", json={"selector": selector, "limit": _PAGE} | on)
            documents = answer.get("docs", [])
            if not documents:
                return
            yield documents
            read += len(documents)
            # Not every server with this protocol has bookmarks.
            on = {"bookmark": answer["bookmark"]} if answer.get("bookmark") else {"skip": read}

    def _session(self) -> requests.Session:
        import requests

        session = requests.Session()
        # Do not use proxies and passwords of the user that runs the server.
        session.trust_env = False
        if self.values.get("apikey"):
            parts = urlsplit(iam.TOKENS)
            self.addresses(str(parts.hostname), parts.port or 443)
            tokens = iam.Tokens(self.kind.title, self.values["apikey"], iam.TOKENS)

            def with_token(request: requests.PreparedRequest) -> requests.PreparedRequest:
                request.headers["Authorization"] = f"Bearer {tokens.current()}"
                return request

            session.auth = with_token
        elif self.values.get("username"):
            words = f"{self.values['username']}:{self.values.get('password', '')}".encode()
            session.headers["Authorization"] = f"Basic {base64.b64encode(words).decode()}"
        return session

    def _ask(self, session: requests.Session, method: str, path: str, **more: Any) -> dict[str, Any]:
        url, database = self.values["url"].rstrip("/"), self.values["database"]
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise DataError(f"{self.kind.title}: 'url' is not a server address; write https://HOST")
        if parts.scheme == "http" and not self.loopback:
            raise DataError(f"{self.kind.title}: 'url' must be https, because http sends the password unencrypted")
        return self._send(session, method, f"{url}/{quote(database, safe='')}{path}", **more)

    def _send(self, session: requests.Session, method: str, url: str, **more: Any) -> dict[str, Any]:
        """Return the JSON object of the answer. Raises DataError with the server's reason for any other answer."""
        import requests

        parts = urlsplit(url)
        self.addresses(str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80))
        try:
            answer = session.request(method, url, timeout=_PATIENCE, allow_redirects=False, **more)
            found = answer.json()
        except requests.exceptions.SSLError as problem:
            raise DataError(f"{self.kind.title}: {parts.hostname}: {in_words(problem)}") from None
        except requests.exceptions.JSONDecodeError:
            found = None
        except (requests.RequestException, OSError) as problem:
            raise DataUnavailable(f"{self.kind.title}: {parts.hostname} does not answer: {in_words(problem)}") from None
        if answer.status_code == 200 and isinstance(found, dict):
            return found
        said = found.get("reason") or found.get("errorMessage") if isinstance(found, dict) else answer.reason
        passes = answer.status_code >= 500 or answer.status_code in (408, 425, 429)
        raise (DataUnavailable if passes else DataError)(
            f"{self.kind.title}: {parts.hostname} answers {answer.status_code}: {self.without_secrets(said)}")


def _is_design(document: Mapping[str, Any]) -> bool:
    """Return whether a document is a program of the database and not data."""
    return str(document.get("_id", "")).startswith("_design/")


def _selector(query: Any) -> dict[str, Any] | None:
    """Return the selector, which may be the text of a JSON object; None for all documents. Raises DataError."""
    if isinstance(query, str) and query.strip():
        try:
            query = strict_json.read(query)
        except ValueError as problem:
            raise DataError(f"{_NO_SELECTOR}: it {problem}") from None
    if query is None or query in ("", {}):
        return None
    if not isinstance(query, dict):
        raise DataError(_NO_SELECTOR)
    return query


CLOUDANT = Kind(
    "cloudant", "Cloudant", Cloudant,
    fields=(
        Field("url", "address of the server: https://HOST", required=True, aliases=("custom_url", "host"),
              schemes=("https", "http")),
        Field("database", "name of the database", required=True, aliases=("dbname", "database_name")),
        Field("username", "user that reads the data", aliases=("user",)),
        Field("password", "password of the user", secret=True),
        Field("apikey", "API key of IBM Cloud, instead of user and password", secret=True, aliases=("api_key",)),
    ),
    aliases=("couchdb", "ibm-cloudant", "cloudantdb"), extra="data", modules=("pyarrow",),
    tested="PouchDB Server 4 (CouchDB's protocol), by hand",
)
