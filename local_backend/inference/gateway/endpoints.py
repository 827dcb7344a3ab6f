"""The paths of the gateway: which handler takes a request, and the inference of WMLA's interface."""

from __future__ import annotations

import json
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from urllib.parse import unquote

from dlicmd.contract import inference_wire as wire
from dlicmd.contract.wire import HEALTH, METRICS
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.access import AccessControl, RequestUser
from local_backend.inference.gateway.answers import EventAnswer, VerbatimAnswer, request_timeout, send_refusal
from local_backend.inference.gateway.choice import TokenRates
from local_backend.inference.gateway.counters import PAGE, GatewayCounters
from local_backend.inference.gateway.exchange import HttpExchange
from local_backend.inference.gateway.refusal import Refused
from local_backend.inference.gateway.served_models import ServedModel, ServedModels
from local_backend.inference.gateway.tasks import AnswerSink, QueuedRequest

#: Most bytes of a body that no model takes, and of a body before the model is known.
_SMALL = 1 << 16
#: Encoded metadata of tasks by content type, for the most frequent ones.
_METAS: dict[str, bytes] = {}


class Endpoints:
    """Finds the handler of each request and hands requests to the queues."""

    def __init__(self, models: ServedModels, access: AccessControl, counters: GatewayCounters,
                 loop: AbstractEventLoop) -> None:
        self.models = models
        self.access = access
        self.counters = counters
        self.rates = TokenRates()
        self.held: Callable[[], int] = int
        #: Whether the gateway takes requests; False while it ends.
        self.is_live = True
        self._loop = loop

    def admit(self, exchange: HttpExchange) -> None:
        """Find the handler, the user, the model and the body limit of a request. Raises Refused."""
        path = exchange.path
        if path.startswith(wire.INFERENCE):
            _only(exchange, "POST")
            exchange.handler = self._infer
            self.find_model(exchange, _name(path[len(wire.INFERENCE):]))
        elif path == HEALTH:
            self.open_to_all(exchange, self._health)
        elif path == METRICS:
            _only(exchange, "GET", "HEAD")
            exchange.handler = self._metrics
            self.find_model(exchange, "")
        else:
            raise refusals.no_path(path[:200])

    def open_to_all(self, exchange: HttpExchange, handler: Callable[[HttpExchange], None]) -> None:
        """Let a request without a token have a handler. Raises Refused for another method than GET."""
        _only(exchange, "GET", "HEAD")
        exchange.handler, exchange.limit = handler, _SMALL

    def find_model(self, exchange: HttpExchange, name: str) -> None:
        """Find the user and the model of a request; only the user if its body names the model.

        With an unknown token, find only the question for the server. Raises Refused.
        """
        exchange.target = name
        exchange.limit = _SMALL
        found = self.access.user(exchange.headers, exchange.is_local)
        if isinstance(found, RequestUser):
            self._permit(exchange, found)
        else:
            exchange.question = found

    def _permit(self, exchange: HttpExchange, user: RequestUser) -> None:
        exchange.user = user
        if exchange.target:
            exchange.served = served = self.access.model(exchange.target, user)
            exchange.limit = served.model.limits.body_bytes
        else:
            exchange.limit = max([_SMALL, *(one.model.limits.body_bytes + _SMALL for one in self.access.models(user))])

    async def resolve(self, exchange: HttpExchange) -> None:
        """Ask the server about the token of a request. Raises Refused."""
        found: RequestUser | str = exchange.question
        asked: list[str] = []
        while isinstance(found, str):
            await self.access.ask(found)
            asked.append(found)
            found = self.access.user(exchange.headers, exchange.is_local, asked)
        self._permit(exchange, found)
        length = exchange.headers.get("content-length", "0")
        if exchange.received > exchange.limit or (length.isdigit() and int(length) > exchange.limit):
            raise refusals.too_large(exchange.limit)

    # Inference ----------------------------------------------------------------------------------------------------

    def _infer(self, exchange: HttpExchange) -> None:
        events = wire.EVENTS in exchange.headers.get("accept", "")
        self.submit(exchange, EventAnswer(exchange) if events else VerbatimAnswer(exchange))

    def submit(self, exchange: HttpExchange, sink: AnswerSink, *, body: bytes | None = None,
               meta: bytes | None = None, pinned: int | None = None,
               timeout: float | None = None) -> QueuedRequest | None:
        """Hand a request to the queue of its model. A refusal goes to the sink."""
        served, user = exchange.served, exchange.user
        assert served is not None and user is not None
        now = self._loop.time()
        try:
            headers = exchange.headers
            if wire.REQUEST_TIMEOUT in headers:
                timeout = request_timeout(headers)
            if served.model.limits.token_rate is not None:
                self.check_rate(served, user, now)
            request = self.models.submit(
                served, exchange.body if body is None else body, meta_of(headers, timeout) if meta is None else meta,
                sink, now, timeout=timeout, pinned=pinned)
        except Refused as why:
            sink.refuse(why)
            return None
        if request.sink is not None:
            exchange.cancel = lambda: self.models.withdraw(request)
        return request

    def withdraw(self, request: QueuedRequest) -> None:
        """End a request whose client is gone."""
        self.models.withdraw(request)

    def check_rate(self, served: ServedModel, user: RequestUser, now: float) -> None:
        """Raise Refused if the token has sent too many requests."""
        rate = served.model.limits.token_rate
        if rate is not None:
            seconds = self.rates.take(f"{served.model.name} {user.token}", rate, now)
            if seconds:
                raise refusals.too_fast(served.model.name, rate, seconds)

    # Health -------------------------------------------------------------------------------------------------------

    def _health(self, exchange: HttpExchange) -> None:
        status = "ok" if self.is_live and self.models.state is not None else "starting" if self.is_live else "ending"
        exchange.answer(200 if status == "ok" else 503, wire.JSON, json.dumps({"status": status}).encode())

    def _metrics(self, exchange: HttpExchange) -> None:
        assert exchange.user is not None
        names = {served.model.name for served in self.access.models(exchange.user)}
        exchange.answer(200, PAGE, self.counters.page(self.models, names, self.held()).encode())

    def refuse(self, exchange: HttpExchange, why: Refused) -> None:
        """Answer with a refusal."""
        send_refusal(exchange, why)


def _only(exchange: HttpExchange, *methods: str) -> None:
    if exchange.method not in methods:
        raise refusals.wrong_method(" and ".join(methods))


def _name(text: str) -> str:
    """Return the name of a model from a path. Raises Refused."""
    text = text.removesuffix("/")
    name = unquote(text) if "%" in text else text
    if not name or "/" in name:
        raise refusals.no_model(name[:200])
    return name


def meta_of(headers: dict[str, str], timeout: float | None, length: int | None = None) -> bytes:
    """Return the metadata that a kernel gets with a request; empty if there is none."""
    kind, trace = headers.get("content-type", ""), headers.get(wire.TRACE_PARENT)
    if timeout is None and trace is None and length is None:
        found = _METAS.get(kind)
        if found is None:
            found = json.dumps({wire.META_TYPE: kind}).encode() if kind else b""
            if len(_METAS) < 100:
                _METAS[kind] = found
        return found
    about: dict[str, object] = {wire.META_TYPE: kind} if kind else {}
    if timeout is not None:
        about[wire.META_DEADLINE] = round(time.time() + timeout, 3)
    if trace is not None:
        about[wire.META_TRACE] = trace
    if length is not None:
        about[wire.META_LENGTH] = length
    return json.dumps(about).encode()
