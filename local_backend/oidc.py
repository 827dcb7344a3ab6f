"""Tokens of an OIDC issuer: fetches the keys of the issuer, and verifies tokens with them.

A token is verified by its signature with a key of the issuer, and by `iss`, `aud`, `exp`, `iat` and `azp`. Only
algorithms with a public key count. Anyone can send a token with an unknown key, so the keys are fetched at most once
per PAUSE.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import jwt

from local_backend.errors import Unauthorized, Unavailable
from local_backend.settings import OidcSettings

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
#: Seconds by which clocks may differ.
_LEEWAY = 30
#: Seconds: between two fetches of the keys because of an unknown key or after a failure; the age after which the keys
#: are fetched again; the age after which they are no longer used.
PAUSE, FRESH, USABLE = 60.0, 3600.0, 86_400.0
#: Limits of an answer of the issuer, in bytes and in seconds.
_LARGEST, _PATIENCE = 1 << 20, 10.0
#: Maximum characters of a token.
LONGEST_TOKEN = 16_384

#: Returns the JSON object at a URL. Raises OSError, ValueError.
Fetch = Callable[[str], Mapping[str, Any]]


class OidcTokens:
    """Verifies tokens of the issuer in the settings. Use it in one event loop."""

    def __init__(
        self, settings: OidcSettings, fetch: Fetch | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._fetch = fetch or self._fetched
        self._clock = clock
        self._lock = asyncio.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._loaded: float | None = None
        self._tried: float | None = None
        self._problem = ""

    async def claims(self, token: str, nonce: str | None = None) -> dict[str, Any]:
        """Return the claims of a valid token. A token with a nonce is valid only together with the same `nonce`.

        Raises Unauthorized (`oidc.token`), Unavailable (`oidc.issuer`).
        """
        try:
            header = jwt.get_unverified_header(token) if len(token) <= LONGEST_TOKEN else {}
            if header.get("alg") not in _ALGORITHMS:
                raise _invalid("its algorithm is not permitted")
            key = await self._key(header.get("kid"))
            audience = self._settings.audience or self._settings.client_id
            claims: dict[str, Any] = jwt.decode(
                token, key.key, _ALGORITHMS, {"require": _REQUIRED}, audience=audience, issuer=self._settings.issuer,
                leeway=_LEEWAY,
            )
        except (jwt.PyJWTError, ValueError, TypeError) as problem:
            raise _invalid(str(problem)[:200].rstrip(".")) from None
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and claims.get("azp", self._settings.client_id) != self._settings.client_id:
            raise _invalid("the issuer gave it to another client")
        if claims.get("nonce") != nonce:
            raise _invalid("it answers another logon")
        return claims

    async def _key(self, kid: object) -> jwt.PyJWK:
        """Return the key of the issuer with an id; with None the only one. Raises Unauthorized, Unavailable."""
        found = self._known(kid)
        if found is None or self._is_older_than(FRESH):
            async with self._lock:
                if (self._known(kid) is None or self._is_older_than(FRESH)) and self._may_try():
                    await self._load()
            found = self._known(kid)
        if found is None or self._is_older_than(USABLE):
            if self._loaded is None or self._is_older_than(USABLE):
                sentence = f"The server cannot fetch the keys of the OIDC issuer ({self._problem})"
                raise Unavailable("oidc.issuer", sentence, retry_after=int(PAUSE))
            raise _invalid("the issuer has no such key")
        return found

    def _known(self, kid: object) -> jwt.PyJWK | None:
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid) if isinstance(kid, str) else None

    def _is_older_than(self, seconds: float) -> bool:
        return self._loaded is None or self._clock() - self._loaded > seconds

    def _may_try(self) -> bool:
        return self._tried is None or self._clock() - self._tried >= PAUSE

    async def _load(self) -> None:
        """Fetch the keys. After a failure, those that are known stay."""
        self._tried = self._clock()
        try:
            self._keys = await asyncio.to_thread(self._read)
            self._loaded, self._problem = self._clock(), ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError) as problem:
            self._problem = " ".join(str(problem).split())[:300] or type(problem).__name__

    def _read(self) -> dict[str, jwt.PyJWK]:
        issuer = str(self._settings.issuer)
        described = self._fetch(issuer.rstrip("/") + "/.well-known/openid-configuration")
        if described.get("issuer") != issuer:
            raise ValueError("it describes another issuer")
        place = str(described["jwks_uri"])
        if urlsplit(place).scheme != "https" and not issuer.startswith("http:"):
            raise ValueError("its keys are not behind https")
        usable = [one for one in self._fetch(place)["keys"]
                  if one.get("use", "sig") == "sig" and one.get("kty") != "oct"]
        return {str(key.key_id or ""): key for key in jwt.PyJWKSet(usable).keys}

    def _fetched(self, url: str) -> Mapping[str, Any]:
        """Return the JSON object at a URL, over verified TLS and without redirects."""
        import requests  # only for OIDC

        authority = self._settings.authority
        with requests.get(url, timeout=_PATIENCE, allow_redirects=False, stream=True,
                          verify=str(authority) if authority else True) as answer:
            if answer.status_code != 200:
                raise ValueError(f"HTTP {answer.status_code} from {url}")
            content = answer.raw.read(_LARGEST + 1, decode_content=True)
        found = json.loads(content) if len(content) <= _LARGEST else None
        if not isinstance(found, dict):
            raise ValueError(f"no JSON object at {url}")
        return found


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim; None if it is missing. `a.b` is a claim of this name, or `b` in the object `a`."""
    if name in claims:
        return claims[name]
    first, dot, rest = name.partition(".")
    inner = claims.get(first)
    return claim(inner, rest) if dot and isinstance(inner, dict) else None


def _invalid(why: str) -> Unauthorized:
    return Unauthorized("oidc.token", f"The OIDC token is not valid: {why}")
