"""Hides secrets of a connection in texts for users: texts of libraries and servers may contain secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dlicmd.contract.secret import MASK

if TYPE_CHECKING:
    from local_backend.data.kinds.base import Field

#: Shorter secrets are parts of many words: the rest of a masked word would reveal them. As a separate word such a text
#: may be the secret, or an `a` that any reader can fill in.
_SHORTEST = 4
UNTOLD = ("error details are hidden because they may contain a secret of the connection; to see them, use a secret of "
          f"at least {_SHORTEST} characters")


def secrets_of(fields: Iterable[Field], values: Mapping[str, str]) -> list[str]:
    """Return the secret values of a connection, the longest first."""
    names = {name for one in fields if one.secret for name in (one.name, *one.aliases)}
    return sorted({value for name, value in values.items() if name in names and value}, key=len, reverse=True)


def without(text: object, secrets: Iterable[str]) -> str:
    """Return a text with the secrets masked; return UNTOLD if a short secret stands in it as a word."""
    found = str(text)
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            found = found.replace(secret, MASK)
        elif re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", found):
            return UNTOLD
    return found
