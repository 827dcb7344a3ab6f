"""The certificate of `serve --tls-self-signed`: an authority of this server's own, and the certificate that it signs.

Clients trust the authority (ca.pem), which is valid for ten years. It can sign for the names of this server only, so
its key is of no use for other servers. A name that the server did not have when the authority was made needs another
authority, which clients must get. Addresses come and go, such as those of a container's network: an address that the
authority does not permit is left out, unless it is a name of the server. An authority of an earlier version permits all
names, and stays until shortly before its end.

The server's own certificate is valid for a year. It is replaced a month before its end, or when the machine has other
names; clients do not notice. A key and its certificate are in one file, so that they always match.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local_backend.files import write_atomic

_AUTHORITY_LIVES = timedelta(days=3650)
_LIVES = timedelta(days=365)
#: A certificate is replaced this long before its end.
_EARLY = timedelta(days=30)
#: Certificates are valid from this long before now: clocks of clients may be behind.
_SKEW = timedelta(days=1)
_PEM = serialization.Encoding.PEM

Key = ec.EllipticCurvePrivateKey
Pair = tuple[Key, x509.Certificate]


class SelfSigned:
    """The files in `folder`, for a server with these `names`: host names and addresses. It may also have other
    `addresses`, which the certificate has as far as the authority permits them."""

    def __init__(self, folder: Path, names: Iterable[str], addresses: Iterable[str] = ()) -> None:
        self._folder = folder
        self._names = _generals({*names, "localhost", "127.0.0.1", "::1"})
        self._addresses = [one for one in _generals(addresses) if one not in self._names]

    @property
    def authority(self) -> Path:
        """The file that clients trust: the certificate of the authority alone, in PEM form."""
        return self._folder / "ca.pem"

    @property
    def server(self) -> Path:
        """The file that the server uses: its key, its certificate and that of the authority, in PEM form."""
        return self._folder / "server.pem"

    def make(self, now: datetime | None = None) -> bool:
        """Make certificates that are missing, expire soon or have other names. Return whether the server's certificate
        is new.

        Raises OSError, also for a file that is not a key with its certificate.
        """
        now = now or datetime.now(timezone.utc)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        issuer = self._authority(now)
        public = issuer[1].public_bytes(_PEM)
        if not self.authority.exists() or self.authority.read_bytes() != public:
            write_atomic(self.authority, public)
        names = self._names + [one for one in self._addresses if _permits(issuer[1], one)]
        found = _read(self.server)
        if found is not None and _fits(found[1], issuer[1], names, now):
            return False
        key, certificate = _issued(issuer, names, now)
        write_atomic(self.server, _private(key) + certificate.public_bytes(_PEM) + public)
        return True

    def fingerprint(self) -> str:
        """Return the authority's SHA-256 fingerprint, as `openssl x509 -fingerprint -sha256` writes it. Raises
        OSError."""
        return "".join(fingerprints(self.authority).values())

    def _authority(self, now: datetime) -> Pair:
        path = self._folder / "authority.pem"
        found = _read(path)
        if found is not None and found[1].not_valid_after_utc - _LIVES > now and all(
            _permits(found[1], one) for one in self._names
        ):
            return found
        key = ec.generate_private_key(ec.SECP256R1())
        name = _called(f"dlicmd authority of {socket.gethostname()}")
        certificate = (
            _builder(name, name, key, now, _AUTHORITY_LIVES)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(_only([*self._names, *self._addresses]), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_atomic(path, _private(key) + certificate.public_bytes(_PEM))
        return key, certificate


def fingerprints(path: Path) -> dict[str, str]:
    """Return the subject and the SHA-256 fingerprint of each certificate in a file, as `openssl x509 -fingerprint
    -sha256` writes it; none for a certificate that only other libraries can read. Raises OSError."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError:
        return {}
    return {one.subject.rfc4514_string(): one.fingerprint(hashes.SHA256()).hex(":").upper()
            for one in found}


def names_of(host: str, more: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the names by which clients may reach a server that listens on `host`: the names of this machine, those in
    `more`, and `host`. If `host` stands for all addresses, also return all addresses of this machine."""
    names = {socket.gethostname(), socket.getfqdn(), *more}
    addresses: set[str] = set()
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if everywhere:
        inet = (socket.AF_INET, socket.AF_INET6)
        found = [address for there in psutil.net_if_addrs().values() for address in there if address.family in inet]
        addresses = {address.address.partition("%")[0] for address in found}
    else:
        names.add(host)
    return {name.strip() for name in names if name.strip()}, addresses


def _generals(texts: Iterable[str]) -> list[x509.GeneralName]:
    """Return the host names and addresses among these texts as certificates state them, sorted."""
    return [name for text in sorted(set(texts)) if (name := _general(text)) is not None]


def _only(names: Iterable[x509.GeneralName]) -> x509.NameConstraints:
    """Return the constraints that permit these names alone."""
    permitted = [x509.IPAddress(ipaddress.ip_network(name.value)) if isinstance(name, x509.IPAddress)
                 else x509.DNSName(_domain(name)) for name in names]
    return x509.NameConstraints(permitted, None)


def _permits(authority: x509.Certificate, name: x509.GeneralName) -> bool:
    """Return whether an authority may sign for this name."""
    try:
        permitted = authority.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or ()
    except x509.ExtensionNotFound:
        return True
    if isinstance(name, x509.IPAddress):
        return x509.IPAddress(ipaddress.ip_network(name.value)) in permitted
    domain = _domain(name)
    return any(isinstance(one, x509.DNSName) and (domain == one.value or domain.endswith(f".{one.value}"))
               for one in permitted)


def _domain(name: x509.GeneralName) -> str:
    """Return the host name; for a name that stands for several hosts (`*.example`), the domain of these."""
    return str(name.value).lower().removeprefix("*.")


def _issued(issuer: Pair, names: list[x509.GeneralName], now: datetime) -> Pair:
    """Return a new key, and a certificate of the issuer for these names."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_called(socket.gethostname()), issuer[1].subject, key, now, _LIVES)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer[0].public_key()), critical=False)
        .sign(issuer[0], hashes.SHA256())
    )
    return key, certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime, lives: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lives)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general(text: str) -> x509.GeneralName | None:
    """Return an address or a host name as certificates state it; None if the text is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        return None


def _fits(found: x509.Certificate, issuer: x509.Certificate, names: list[x509.GeneralName], now: datetime) -> bool:
    """Return whether the authority issued a certificate for exactly these names, and it does not expire soon."""
    try:
        found.verify_directly_issued_by(issuer)
        stated = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return list(stated) == names and found.not_valid_before_utc <= now < found.not_valid_after_utc - _EARLY


def _read(path: Path) -> Pair | None:
    """Return the key and certificate in a file; None if it is missing. Raises OSError, also for other content."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        key = serialization.load_pem_private_key(content, None)
        certificate = x509.load_pem_x509_certificate(content)
    except ValueError:
        raise OSError(0, "the file does not contain a key with its certificate; remove the file", str(path)) from None
    if not isinstance(key, Key):
        raise OSError(0, "the file contains a key that this program did not make; remove the file", str(path))
    return key, certificate


def _private(key: Key) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
