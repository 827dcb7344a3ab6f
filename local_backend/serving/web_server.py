"""The web server under the application: its shutdown and its certificate."""

from __future__ import annotations

import contextlib
import logging
import signal
import ssl
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from local_backend.errors import ServingError
from local_backend.serving.connections import LARGEST_HEAD, Protocol
from local_backend.settings import Settings

if TYPE_CHECKING:
    from local_backend.api.guard import Guard
    from local_backend.serving.self_signed import SelfSigned

_log = logging.getLogger(__name__)

#: Seconds for open calls to end when the server stops.
_GOODBYE = 3
#: Ticks between two checks of the age of a certificate: one hour.
_RENEW_TICKS = 36_000
#: A browser that has seen this header over TLS uses only TLS for the host, for 1 year.
_ONLY_TLS = ("Strict-Transport-Security", "max-age=31536000")


class Server(uvicorn.Server):
    """A web server that ends on a signal (see `heeding_signals`). Its caller does the remaining cleanup."""

    def __init__(self, config: uvicorn.Config, guard: Guard, own_tls: SelfSigned | None) -> None:
        super().__init__(config)
        self._guard = guard
        self._own_tls = own_tls
        #: The server calls this twice a second, and ends when it returns False.
        self.may_go_on: Callable[[], bool] = lambda: True
        #: The server calls this as often, to repair its files.
        self.mend: Callable[[], None] = lambda: None

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end. The base class calls this ten times a second."""
        if counter % 5 == 0 and not self.should_exit:
            if self.may_go_on():
                self.mend()
            else:
                self._guard.services.machine.closing = self.should_exit = True
        if counter % _RENEW_TICKS == 0:
            self.renew_certificate()
        return await super().on_tick(counter)

    def renew_certificate(self) -> None:
        """Renew the server's own certificate when that is due. Clients that connect from now on get the new one."""
        try:
            if self._own_tls is not None and self._own_tls.make() and self.config.ssl is not None:
                self.config.ssl.load_cert_chain(self._own_tls.server)
                _log.info("renewed the TLS certificate")
        except OSError as problem:
            _log.error("cannot renew the TLS certificate, next attempt in one hour: %s", problem)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing. The base class would raise the signal again afterwards, which ends the process at once."""
        yield

    @contextlib.contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """End the server on SIGTERM and SIGINT within the block, which begins before the server is announced."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: long polls answer at once, then the server ends."""
        self._guard.services.machine.closing = True
        super().handle_exit(sig, frame)


def make_server(guard: Guard, settings: Settings, own_tls: SelfSigned | None = None) -> Server:
    """Return the web server for an application. Raises ServerError when the certificate cannot be used."""
    certificate, key = (own_tls.server, None) if own_tls else (settings.tls_cert, settings.tls_key)
    config = uvicorn.Config(
        guard,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=Protocol,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        ws="none",
        loop="asyncio",
        server_header=False,
        headers=[_ONLY_TLS] if settings.speaks_tls else [],
        proxy_headers=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=_GOODBYE,
        ssl_certfile=str(certificate) if certificate else None,
        ssl_keyfile=str(key) if key else None,
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as problem:
        of_files = not isinstance(problem, ssl.SSLError) and problem.strerror
        reason = of_files or "not a certificate and its matching key in PEM form"
        raise ServingError(f"--tls-cert {certificate}, --tls-key {key or certificate}: {reason}") from None
    return Server(config, guard, own_tls)
