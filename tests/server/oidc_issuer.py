"""An OIDC issuer on the loopback that serves its keys and signs anything; it counts the fetches of its keys."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as rsa_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT = "dlicmd-client"


class Issuer:
    """The issuer. `close` ends it."""

    def __init__(self) -> None:
        issuer = self
        self.key = rsa_key(65537, 2048)
        self.curve = generate_private_key(SECP256R1())
        self.keys: dict[str, RSAPrivateKey] = {"one": self.key}
        self.fetches = 0
        self.broken = False
        self.said_issuer: str | None = None

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = issuer._answer(self.path)
                self.send_response(500 if found is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/realm"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, path: str) -> Any:
        if self.broken:
            return None
        if path.endswith("/openid-configuration"):
            return {"issuer": self.said_issuer or self.url, "jwks_uri": f"{self.url}/jwks"}
        self.fetches += 1
        keys = [{**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}
                for kid, key in self.keys.items()]
        keys.append({**ECAlgorithm.to_jwk(self.curve.public_key(), as_dict=True), "kid": "curve", "use": "sig"})
        keys.append({"kty": "oct", "kid": "secret", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"})
        return {"keys": keys}

    @property
    def pem(self) -> bytes:
        """The public key, which everybody knows."""
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        found = {"iss": self.url, "aud": CLIENT, "sub": "account-1", "iat": now, "exp": now + 600,
                 "preferred_username": "ada", **more}
        return {key: value for key, value in found.items() if value is not None}

    def token(self, kid: str | None = "one", key: Any = None, algorithm: str = "RS256", **more: Any) -> str:
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**more), key or self.key, algorithm, headers=headers)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
