"""Which user sends a request, and which models this user may use."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dlicmd.contract import inference_wire as wire
from local_backend.inference.control import GatewayState, Token
from local_backend.inference.gateway import refusal as refusals
from local_backend.inference.gateway.served_models import ServedModel, ServedModels

#: Seconds that a request waits until the server says whose an unknown token is.
_PATIENCE = 2.0
#: Seconds that the gateway remembers that a token is unknown, and most such tokens.
_UNKNOWN_TIME, _UNKNOWN = 5.0, 10_000
#: Most tokens that the server is asked about at the same time.
_QUESTIONS = 256
#: Scopes that permit requests to models: the token of a logon has none; one that may submit may run models, too.
_SCOPES = (None, "", wire.INFERENCE_SCOPE, "submit", "admin")


@dataclass(frozen=True)
class RequestUser:
    """The user of a request. `token` identifies the token in limits of rates; it ends at `expires` (epoch seconds)."""

    name: str
    admin: bool
    token: str
    expires: float = math.inf


class AccessControl:
    """Finds the user of a request, and asks the server about tokens that it does not know."""

    def __init__(self, models: ServedModels, ask: Callable[[str], bool]) -> None:
        """`ask` sends a question about the digest of a token to the server; it returns False if no server is there."""
        self._models = models
        self._ask = ask
        self._known: Mapping[str, Token] = {}
        self._users: dict[str, RequestUser] = {}
        self._unknown: dict[str, float] = {}
        self._questions: dict[str, asyncio.Future[bool]] = {}

    def apply(self, state: GatewayState) -> None:
        """Use the tokens of a state."""
        self._known = state.tokens
        self._users.clear()
        for digest in self._questions.keys() & state.tokens.keys():
            self._settle(digest, True)

    def no_token(self, digest: str) -> None:
        """Note that the server does not know a token."""
        now = time.monotonic()
        if len(self._unknown) >= _UNKNOWN:
            self._unknown = {one: until for one, until in self._unknown.items() if until > now}
        if len(self._unknown) < _UNKNOWN:
            self._unknown[digest] = now + _UNKNOWN_TIME
        self._settle(digest, False)

    def _settle(self, digest: str, known: bool) -> None:
        question = self._questions.get(digest)
        if question is not None and not question.done():
            question.set_result(known)

    def user(self, headers: Mapping[str, str], local: bool, asked: Collection[str] = ()) -> RequestUser | str:
        """Return the user of a request, or the digest of a token that only the server may know.

        One valid token among those of the headers is enough. `local`: the request comes from the server. `asked`:
        digests that the server was asked about. Raises Refused (401, 403).
        """
        if local and wire.LOCAL_USER in headers:
            name = headers[wire.LOCAL_USER]
            return RequestUser(name, headers.get(wire.LOCAL_ADMIN) == "1", f"user {name}")
        question, why = "", refusals.no_token()
        for text in _tokens(headers):
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            token = self._known.get(digest)
            if token is None:
                if digest not in asked and self._unknown.get(digest, 0.0) <= time.monotonic():
                    question = question or digest
            elif token.expires <= time.time():
                continue
            elif token.scope not in _SCOPES:
                why = refusals.wrong_scope(str(token.scope))
            else:
                found = self._users.get(digest)
                if found is None:
                    found = self._users[digest] = RequestUser(token.user, token.admin, digest, token.expires)
                return found
        if not question:
            raise why
        return question

    async def ask(self, digest: str) -> None:
        """Ask the server about a token, and wait until it has answered. Raises Refused if it does not answer."""
        question = self._questions.get(digest)
        if question is None:
            if len(self._questions) >= _QUESTIONS or not self._ask(digest):
                raise refusals.unknown_token()
            question = self._questions[digest] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(asyncio.shield(question), _PATIENCE)
        except asyncio.TimeoutError:
            raise refusals.unknown_token() from None
        finally:
            if self._questions.get(digest) is question:
                del self._questions[digest]

    def model(self, name: str, user: RequestUser) -> ServedModel:
        """Return a model that the user may use. Raises Refused (404), also for a model of another user."""
        served = self._models.models.get(name)
        if served is None:
            if self._models.state is None:
                raise refusals.no_state()
            raise refusals.no_model(name)
        if _may_use(user, served):
            return served
        raise refusals.no_model(name)

    def models(self, user: RequestUser) -> list[ServedModel]:
        """Return all models that the user may use."""
        return [served for served in self._models.models.values() if _may_use(user, served)]


def _may_use(user: RequestUser, served: ServedModel) -> bool:
    model = served.model
    return model.owner == user.name or user.admin or model.shared is True or user.name in model.shared


def _tokens(headers: Mapping[str, str]) -> list[str]:
    """Return the tokens of a request."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    given = [token.strip() if kind.lower() == "bearer" else "", *(headers.get(name, "") for name in wire.TOKEN_HEADERS)]
    return [one for one in given if one]
