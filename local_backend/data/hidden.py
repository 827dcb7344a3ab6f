"""Secrets of a connection in texts that people get: what libraries and servers say may have some in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dlicmd.contract.secret import MASK

if TYPE_CHECKING:
    from local_backend.data.kinds.base import Field

#: Shorter ones are parts of many words: masked there, they would be told by what is left of the words. Standing alone
#: they may be what they are, or the `a` of a sentence that everybody can complete.
_SHORTEST = 4
UNTOLD = (f"what went wrong is not told: a secret of the connection, of less than {_SHORTEST} characters, could be "
          "read in it; with a longer one it is")


def secrets_of(fields: Iterable[Field], values: Mapping[str, str]) -> list[str]:
    """The values of a connection that are secret, the longest first."""
    names = {name for one in fields if one.secret for name in (one.name, *one.aliases)}
    return sorted({value for name, value in values.items() if name in names and value}, key=len, reverse=True)


def without(text: object, secrets: Iterable[str]) -> str:
    """A text with the secrets masked, and UNTOLD in the place of one in which a short secret stands as a word."""
    found = str(text)
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            found = found.replace(secret, MASK)
        elif re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", found):
            return UNTOLD
    return found
