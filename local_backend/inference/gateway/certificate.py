"""The certificate of the gateway. Connections that begin after its files were replaced get the new one."""

from __future__ import annotations

import logging
import os
import ssl

from local_backend.inference.gateway.config import GatewayConfig, GatewayFailed

log = logging.getLogger(__name__)

#: Of each file: inode, size and time of change.
Files = tuple[tuple[int, int, int] | None, ...]


class ServedCertificate:
    """The TLS context of the ports, without certificate None."""

    def __init__(self, config: GatewayConfig) -> None:
        """Raises GatewayFailed."""
        self._config = config
        self._seen = self._files()
        self.context: ssl.SSLContext | None = config.secure()

    def renew(self) -> None:
        """Read the files again if they have changed. While they are unusable, the former certificate stays."""
        if self.context is None or self._config.certificate is None or (found := self._files()) == self._seen:
            return
        self._seen = found
        try:
            # A context keeps a part of a pair that it refuses, so another one tries the pair.
            self._config.secure()
            self.context.load_cert_chain(self._config.certificate, self._config.key)
        except (GatewayFailed, OSError) as problem:
            log.warning("The certificate is not renewed: %s", problem)
        else:
            log.info("Renewed the TLS certificate")

    def _files(self) -> Files:
        return tuple(_identity(path) for path in (self._config.certificate, self._config.key) if path is not None)


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
