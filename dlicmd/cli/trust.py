"""Trust in a server whose certificate no known authority signed: the user names the SHA-256 of a certificate.

The fingerprint is that of the server's own certificate, or of the authority that signed it and that the server shows
with it. An authority is kept as a file and verifies the server, also with a renewed certificate. Of a server without
one, exactly this certificate is accepted.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from datetime import datetime, timezone
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dlicmd.cli.config.private_file import read_private, write_private
from dlicmd.sdk import paths
from dlicmd.sdk.errors import Unreachable, UsageProblem
from dlicmd.sdk.messages import inert
from dlicmd.sdk.tls import RequestsTransport, Untrusted
from dlicmd.sdk.transport import CONNECT_TIMEOUT, Answer, Request

OPTION = "--trust-fingerprint"
_WHAT, _LARGEST, _HTTPS = "certificate file", 2**16, 443
_DER = 2  # ssl._ssl.ENCODING_DER


class Certificate(NamedTuple):
    """The certificate to trust: its SHA-256, whether it is that of an authority, and what it and the server's
    certificate say."""

    sha256: str
    is_authority: bool
    subject: str
    issuer: str
    starts: datetime
    ends: datetime

    @property
    def fingerprint(self) -> str:
        """The fingerprint as users read and give it."""
        return shown(self.sha256)


def parsed(text: str) -> str:
    """Return the hexadecimal digits of a fingerprint, such as `SHA256:AB:CD...`. Raises UsageProblem."""
    digits = re.sub(r"(?i)^sha-?256[:=]", "", text.strip()).replace(":", "").lower()
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise UsageProblem(f"{OPTION}: '{inert(text)[:100]}' is not a SHA-256 fingerprint: SHA256: and 64 hexadecimal "
                           "digits")
    return digits


def shown(sha256: str) -> str:
    """Return a fingerprint as users read it."""
    return "SHA256:" + bytes.fromhex(sha256).hex(":").upper()


class TrustedTransport:
    """A transport of https to `url` that accepts only a server with the trusted certificate or authority. Nothing is
    sent to any other server."""

    is_private = True

    def __init__(self, url: str, fingerprint: str) -> None:
        self._url, self._sha256 = url, parsed(fingerprint)
        self._authority = _stored(self._sha256)
        self._transport = self._opened()

    def send(self, request: Request) -> Answer:
        """See Transport. Raises Unreachable when the server shows another certificate."""
        try:
            return self._transport.send(request)
        except Untrusted as problem:
            if not self._takes_authority():
                raise Untrusted(self._refusal(str(problem))) from None
        return self._transport.send(request)

    def close(self) -> None:
        """See Transport."""
        self._transport.close()

    def _opened(self) -> RequestsTransport:
        if self._authority is not None:
            return RequestsTransport(self._url, ca_cert=self._authority)
        return RequestsTransport(self._url, fingerprint=self._sha256)

    def _takes_authority(self) -> bool:
        """Store the trusted certificate if the server shows it as its authority. Return whether it did so."""
        if self._authority is not None:
            return False
        found = next((one for one in _chain(self._url)[1:] if _sha256(one) == self._sha256), None)
        if found is None:
            return False
        write_private(paths.authority_file(self._sha256), _WHAT, ssl.DER_cert_to_PEM_cert(found).encode())
        self._authority = _stored(self._sha256)
        self._transport.close()
        self._transport = self._opened()
        return True

    def _refusal(self, said: str) -> str:
        where = self._url.partition("://")[2]
        now = offered(self._url)
        if now.sha256 == self._sha256:
            return said
        return (f"{where} does not show the TLS certificate that you trust ({shown(self._sha256)}), so nothing was "
                f"sent: it shows {now.fingerprint}. If its administrator confirms the new one, log on again with "
                f"{OPTION} and the new fingerprint")


def offered(url: str) -> Certificate:
    """Return the certificate of a server to trust: that of its authority if this verifies the server, otherwise the
    server's own. Raises Unreachable."""
    chain = _chain(url)
    authority = next((one for one in chain[1:] if _is_root(one)), None)
    if authority is not None:
        try:
            return _certificate(authority, _peer(url, authority, check_name=True), is_authority=True)
        except ssl.SSLCertVerificationError:
            pass  # another host name: only the certificate itself can be trusted
    try:
        return _certificate(chain[0], _peer(url, chain[0], check_name=False), is_authority=False)
    except ssl.SSLError as problem:
        raise Untrusted(f"the TLS certificate of {url.partition('://')[2]} is not usable "
                        f"({getattr(problem, 'verify_message', '') or problem}); renew it on the server") from None


def _certificate(trusted: bytes, peer: dict[str, Any], is_authority: bool) -> Certificate:
    return Certificate(_sha256(trusted), is_authority, _name(peer.get("subject")), _name(peer.get("issuer")),
                       _time(peer.get("notBefore")), _time(peer.get("notAfter")))


def _name(parts: Any) -> str:
    """Return the common name of a subject, or all that it has."""
    pairs = [pair for part in parts or () for pair in part]
    common = [value for key, value in pairs if key == "commonName"]
    return common[-1] if common else ", ".join(value for _, value in pairs)


def _time(text: Any) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(text)), timezone.utc)


def _sha256(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def _is_root(certificate: bytes) -> bool:
    """Return whether a certificate is that of an authority which signed itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificate)
    return any(found.get("subject") == found.get("issuer") for found in context.get_ca_certs())


def _chain(url: str) -> list[bytes]:
    """Return the certificates that a server shows, its own first. Only a TLS handshake is sent. Raises Unreachable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connected(url, context) as tls:
            own = tls.getpeercert(binary_form=True)
            # Public from Python 3.13 on, and then a list of bytes.
            read = getattr(tls, "get_unverified_chain", None) or tls._sslobj.get_unverified_chain  # type: ignore[attr-defined]
            found = [one if isinstance(one, bytes) else one.public_bytes(_DER) for one in read() or ()]
    except OSError as problem:
        raise Unreachable(f"cannot read the TLS certificate of {url.partition('://')[2]}: {problem}") from None
    return found or [own or b""]


def _peer(url: str, anchor: bytes, check_name: bool) -> dict[str, Any]:
    """Return what the certificate of a server says, verified by the certificate `anchor`. Raises SSLError,
    Unreachable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=anchor)
    try:
        with _connected(url, context) as tls:
            return tls.getpeercert() or {}
    except ssl.SSLError:
        raise
    except OSError as problem:
        raise Unreachable(f"cannot read the TLS certificate of {url.partition('://')[2]}: {problem}") from None


def _connected(url: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    parts = urlsplit(url)
    host = parts.hostname or ""
    plain = socket.create_connection((host, parts.port or _HTTPS), CONNECT_TIMEOUT)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _stored(sha256: str) -> str | None:
    """Return the file of a trusted authority; None if there is none with this fingerprint. Raises TokenFileError."""
    path = paths.authority_file(sha256)
    try:
        content = read_private(path, _WHAT, _LARGEST)
        is_whole = bool(content) and _sha256(ssl.PEM_cert_to_DER_cert((content or b"").decode("ascii"))) == sha256
    except ValueError:
        is_whole = False
    return str(path) if is_whole else None
