"""The transport for everything but plain http on the loopback: TLS verified by default, proxies, no downgrades."""

from __future__ import annotations

import os
import re
import ssl
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from dlicmd.sdk import cancel, hints
from dlicmd.sdk.errors import ConnectFailed, ConnectionLost, Unreachable, UsageProblem
from dlicmd.sdk.messages import warn
from dlicmd.sdk.transport import CHUNK, CONNECT_TIMEOUT, Answer, Request, noted, speaks_tls

_PLAIN_HTTP = re.compile(r"wrong.version.number|record.layer.failure|http.request|packet length too long", re.I)
#: Client and server have no version or cipher in common.
_NO_COMMON = re.compile(r"protocol.version|unsupported.protocol|no.protocols|handshake.failure|no.shared.cipher", re.I)
#: Errors about trust. Other errors of TLS come from a broken connection.
_UNTRUSTED = re.compile(r"certificate|hostname|verify|fingerprint", re.I)


class _Untouched(AuthBase):
    """Keeps `requests` from replacing our Authorization header with data from ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class Untrusted(Unreachable):
    """The certificate of the server is not trusted. Nothing was sent."""


class _PinnedAdapter(HTTPAdapter):
    """Accept only the certificate with this fingerprint, without verifying its authority."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *args: Any, **named: Any) -> None:
        """See HTTPAdapter."""
        super().init_poolmanager(*args, assert_fingerprint=self._fingerprint, **named)


class RequestsTransport:
    """A transport to `url` (https or http). `ca_cert` is a file to verify the server with; `insecure` verifies
    nothing; `fingerprint` is the SHA-256 of the only certificate to accept, in hexadecimal digits."""

    def __init__(
        self, url: str, ca_cert: str | None = None, insecure: bool = False, fingerprint: str | None = None
    ) -> None:
        name = hints.either("--ca-cert", "ca_cert")
        if ca_cert and not os.access(ca_cert, os.R_OK):
            raise UsageProblem(f"{name}: cannot read '{ca_cert}'")
        if ca_cert and os.path.isfile(ca_cert):
            try:
                ssl.create_default_context(cafile=ca_cert)
            except (ssl.SSLError, OSError):
                raise UsageProblem(f"{name}: '{ca_cert}' contains no certificate in PEM format") from None
        self._url = url
        self.is_private = url.startswith("https:")
        self._where = url.partition("://")[2]
        self._session = requests.Session()
        # `verify` is passed with every call: only there it takes precedence over REQUESTS_CA_BUNDLE.
        self._verify: bool | str = False if insecure or fingerprint else ca_cert or True
        if fingerprint is not None:
            self._session.mount("https://", _PinnedAdapter(fingerprint))
        if not self._verify:
            warnings.filterwarnings("ignore", message="Unverified HTTPS request")
        if insecure:
            warn(f"{hints.either('--insecure', 'insecure=True')}: the certificate of {self._where} is not verified")

    def close(self) -> None:
        """See Transport."""
        self._session.close()

    def send(self, request: Request) -> Answer:
        """See Transport."""
        try:
            response = self._session.request(
                request.method, self._url + request.target, headers=dict(request.headers),
                data=request.body,
                auth=_Untouched(), stream=True, allow_redirects=False, verify=self._verify,
                timeout=(min(CONNECT_TIMEOUT, request.timeout), request.timeout),
            )
        except OSError as problem:
            raise self._explained(problem) from None
        content = _StreamedContent(self._where, response)
        return noted(request, Answer(response.status_code, response.headers.items(), content))

    def _explained(self, problem: OSError) -> Unreachable:
        """Return the error for the user, with the remedy for TLS errors. (All errors of `requests` are OSErrors.)"""
        text = _reason(problem)
        is_tls = isinstance(problem, requests.exceptions.SSLError)
        fault = _mistake(problem, self._where) or (self._distrust(_first_line(problem)) if is_tls else None)
        if fault:
            return Untrusted(fault) if is_tls and _UNTRUSTED.search(fault) else Unreachable(fault)
        if isinstance(problem, requests.exceptions.ProxyError):
            return ConnectFailed(f"the proxy on the way to {self._where} failed: {text}")
        if isinstance(problem, requests.Timeout):
            late = f"cannot reach {self._where}: no answer in time"
            unsent = isinstance(problem, requests.ConnectTimeout)
            return ConnectFailed(late, hints.address()) if unsent else ConnectionLost(late)
        if re.search("NewConnectionError|NameResolutionError", repr(problem)):
            return ConnectFailed(f"cannot reach {self._where}: {text}", hints.address())
        host = urlsplit(self._url)
        if not self.is_private and speaks_tls(host.hostname or "", host.port or 80):
            return Unreachable(f"{self._where} speaks TLS, not plain http; leave {hints.http()} out")
        return ConnectionLost(f"the connection to {self._where} broke: {text}")

    def _distrust(self, text: str) -> str | None:
        """Return why TLS is impossible with this server; None for a TLS connection that broke."""
        if _PLAIN_HTTP.search(text):
            return f"{self._where} answers plain http, not https; to use plain http, add {hints.http()}"
        if _NO_COMMON.search(text):
            return (f"{self._where} does not support TLS 1.2 or later ({_ssl_reason(text)}); "
                    "update TLS on the server")
        if _UNTRUSTED.search(text):
            return (f"the TLS certificate of {self._where} is not trusted ({_ssl_reason(text)}); "
                    f"name its authority with {hints.authority()}")
        return None


class _StreamedContent(Iterator[bytes]):
    """The content of one answer, in chunks as they arrive. After a broken connection, each read raises
    ConnectionLost."""

    def __init__(self, where: str, response: requests.Response) -> None:
        self._where, self._response = where, response
        self._chunks: Iterator[bytes] = response.iter_content(CHUNK)
        self._lost = ""

    def __next__(self) -> bytes:
        if self._lost:
            raise ConnectionLost(self._lost)
        cancel.check()
        try:
            return next(self._chunks)
        except StopIteration:
            self._response.close()
            raise
        except OSError as problem:
            self._response.close()
            self._lost = f"the connection to {self._where} broke: {_reason(problem)}"
            raise ConnectionLost(self._lost) from None

    def __del__(self) -> None:
        self._response.close()


def _first_line(problem: OSError) -> str:
    """Return the innermost reason from the stack of libraries, in one line."""
    text = " ".join(str(problem).split())
    found = re.search(r"\[Errno -?[0-9]+\] ([^'\")\\]+)", text)
    return found[1] if found else text[:300]


def _reason(problem: OSError) -> str:
    """Return the same in words if the libraries give only the names of their classes."""
    text = _first_line(problem)
    if cut := re.search(r"IncompleteRead\(([0-9]+) bytes read(?:, ([0-9]+) more expected)?", text):
        return f"the answer ended after {cut[1]} bytes" + (f", {cut[2]} more were expected" if cut[2] else "")
    if "RemoteDisconnected" in text:
        return "closed without an answer"
    if re.search("UNEXPECTED_EOF|EOF occurred", text):
        return "closed during the TLS handshake"
    return text


def _mistake(problem: OSError, where: str) -> str:
    """Return an error that the user must correct, because no other attempt can succeed; "" for other errors."""
    cannot = f"cannot reach {where}: "
    if isinstance(problem, requests.exceptions.InvalidSchema) and "SOCKS" in str(problem):
        return (f"{cannot}the SOCKS proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY needs PySocks: "
                "pip install pysocks")
    found = re.search(r"suitable TLS CA certificate bundle, invalid path: (.*)", str(problem))
    if found:
        return (f"{cannot}{found[1]}, the value of REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, does not exist; name the "
                f"authority with {hints.authority()}, or unset the variable")
    return ""


def _ssl_reason(text: str) -> str:
    found = re.search(r"verify failed: ([^()]+)", text)
    return found[1].strip() if found else text[:200]
