"""API keys of IBM Cloud: services accept a token that is issued for a key."""

from __future__ import annotations

import threading
import time

from local_backend.data.errors import DataError, DataUnavailable, in_words

#: Address of the token service, unless a connection names another.
TOKENS = "https://iam.cloud.ibm.com/identity/token"
_PATIENCE_S = (10, 30)
#: A token is renewed when it expires within this many seconds.
_SPARE_S = 300.0


def form(api_key: str) -> dict[str, str]:
    """Return the form data of a request for a token."""
    return {"grant_type": "urn:ibm:params:oauth:grant-type:apikey", "apikey": api_key}


class Tokens:
    """The token for one key, renewed before it expires. Several threads may ask at once."""

    def __init__(self, title: str, api_key: str, address: str) -> None:
        """Set up the token of one key; `title` names the service in messages."""
        self._title, self._key, self._address = title, api_key, address
        self._lock = threading.Lock()
        self._token, self._ends = "", 0.0

    def current(self) -> str:
        """Return the token. Raises DataError, and DataUnavailable when a retry may help."""
        with self._lock:
            if time.monotonic() >= self._ends:
                self._token, lasts = self._ask()
                self._ends = time.monotonic() + lasts - _SPARE_S
            return self._token

    def _ask(self) -> tuple[str, float]:
        import requests

        try:
            answer = requests.post(
                self._address, data=form(self._key), timeout=_PATIENCE_S, allow_redirects=False,
                # Without this, requests would use ~/.netrc of the user that runs the server.
                auth=lambda request: request,
            )
            found = answer.json() if answer.content else {}
        except requests.exceptions.JSONDecodeError:
            found = {}
        except requests.RequestException as problem:
            raise DataUnavailable(f"{self._title}: {self._address} does not answer: {in_words(problem)}") from None
        if answer.status_code in (400, 401, 403):
            raise DataError(f"{self._title}: {self._address} issues no token for this 'api_key' ({answer.status_code})")
        token, lasts = found.get("access_token"), found.get("expires_in")
        if answer.status_code != 200 or not isinstance(token, str) or not isinstance(lasts, int | float):
            raise DataUnavailable(f"{self._title}: {self._address} answers {answer.status_code} without a token")
        return token, float(lasts)
