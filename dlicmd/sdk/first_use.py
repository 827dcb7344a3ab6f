"""Trust in the certificate that a server shows at the first contact, for scripts of the original client.

The original client verifies no certificate. This transport verifies each. If a certificate cannot be verified, the
transport stores its fingerprint, and later accepts only that certificate from this server (as SSH does).
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from dlicmd.sdk import paths
from dlicmd.sdk.errors import TokenFileError, Unreachable
from dlicmd.sdk.messages import warn
from dlicmd.sdk.tls import RequestsTransport, Untrusted
from dlicmd.sdk.transport import CONNECT_TIMEOUT, Answer, Request

#: This variable with this value permits to send a password to a server whose certificate is not stored yet.
VARIABLE, FIRST = "DLICMD_COMPAT_TLS", "trust-first"
_HTTPS = 443
_LINE = re.compile(r"\S+ [0-9a-f]{64}")


class FirstUseTransport:
    """A transport of https to `url`. `may_trust` is asked once before a password is sent to a server that is new and
    cannot be verified."""

    is_private = True

    def __init__(self, url: str, may_trust: Callable[[str, str], bool]) -> None:
        parts = urlsplit(url)
        self._url, self._may_trust = url, may_trust
        self._host, self._port = parts.hostname or "", parts.port or _HTTPS
        self._where = f"{self._host}:{self._port}"
        pin = _pins().get(self._where)
        self._transport = RequestsTransport(url, fingerprint=pin)
        self._is_new = pin is None

    def send(self, request: Request) -> Answer:
        """See Transport. Raises Unreachable when the certificate is not the stored one, or is not trusted."""
        try:
            return self._transport.send(request)
        except Untrusted:
            if not self._is_new:
                raise Unreachable(
                    f"the TLS certificate of {self._where} is not the one that was stored at the first contact. If it "
                    f"was renewed, remove the line of {self._where} from {paths.pins_file()}"
                ) from None
        # The handshake failed, so the request was not sent.
        fingerprint = self._fingerprint()
        if request.headers.get("Authorization", "").startswith("Basic") and not self._may_send(fingerprint):
            raise Unreachable(
                f"the TLS certificate of {self._where} cannot be verified, so the password was not sent; set "
                f"{VARIABLE}={FIRST} to trust it at the first contact, or name its authority with --ca-cert FILE"
            )
        _pin(self._where, fingerprint)
        warn(f"stored the TLS certificate of {self._where} (SHA-256 {fingerprint}), because it cannot be verified; "
             "from now on only this certificate is accepted")
        self._is_new = False
        self._transport.close()
        self._transport = RequestsTransport(self._url, fingerprint=fingerprint)
        return self._transport.send(request)

    def close(self) -> None:
        """See Transport."""
        self._transport.close()

    def _may_send(self, fingerprint: str) -> bool:
        return os.environ.get(VARIABLE) == FIRST or self._may_trust(self._where, fingerprint)

    def _fingerprint(self) -> str:
        """Return the SHA-256 of the server's certificate, in hexadecimal digits. Raises Unreachable."""
        try:
            text = ssl.get_server_certificate((self._host, self._port), timeout=CONNECT_TIMEOUT)
        except OSError as problem:
            raise Unreachable(f"cannot read the TLS certificate of {self._where}: {problem}") from None
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()


def _pins() -> dict[str, str]:
    """Return the stored fingerprints, by host and port. Each is a line `HOST:PORT SHA256`. Raises TokenFileError when
    the file cannot be used."""
    path = paths.pins_file()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise TokenFileError(f"cannot read the stored certificates, correct or remove {path}: {problem}") from None
    wrong = next((number for number, line in enumerate(lines, 1) if not _LINE.fullmatch(line)), None)
    if wrong is not None:
        raise TokenFileError(f"line {wrong} of {path} is not HOST:PORT and a SHA-256 in hexadecimal digits; remove it")
    return dict(line.split(" ") for line in lines)


def _pin(where: str, fingerprint: str) -> None:
    """Store a fingerprint. The write is atomic, and only the owner can read the file."""
    path: Path = paths.pins_file()
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.writelines(f"{host} {pin}\n" for host, pin in {**_pins(), where: fingerprint}.items())
        os.replace(temporary, path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise TokenFileError(f"cannot store the certificate in {path}: {problem}") from None
