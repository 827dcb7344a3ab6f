"""What of a command line is a secret, and is shown as `***` wherever a submission is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"
_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|KEY|CREDENTIAL|JWT|BEARER", re.IGNORECASE)
_OPTIONS = ("--cs-url-bearer", "--jwt-token", "--password")
_VARIABLE = "--msd-env"


def masked_words(words: Sequence[str]) -> list[str]:
    """The words with the values of secret-looking variables and options masked. After `--` all is the program's."""
    own = words.index("--") if "--" in words else len(words)
    return [_masked(words[at - 1] if at else "", word) for at, word in enumerate(words[:own])] + list(words[own:])


def _masked(before: str, word: str) -> str:
    """A word, given the one before it; an empty secret stays empty."""
    name, equals, value = word.partition("=")
    if before in _OPTIONS:
        return MASK if word else word
    if name in _OPTIONS and value:
        return f"{name}={MASK}"
    kept = f"{_VARIABLE}=" if name == _VARIABLE and equals else ""
    if not kept and before != _VARIABLE:
        return word
    variable, _, value = word.removeprefix(kept).partition("=")
    return f"{kept}{variable}={MASK}" if value and _NAME.search(variable) else word
