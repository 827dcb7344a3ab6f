"""What of a command line is a secret, and is shown as `***` wherever a submission is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from dlicmd.contract.argv import join_args, split_args

MASK = "***"
_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|KEY|CREDENTIAL|JWT|BEARER", re.IGNORECASE)
_OPTIONS = ("--cs-url-bearer", "--jwt-token", "--password")
_VARIABLE = "--msd-env"
#: Options whose value says where metrics go, a URL or `name=value,name=value`: a password may be part of it.
_PLACES = ("--cs-url-meta", "--cs-rmq-meta")
#: A password in a URL goes up to the last @, whatever is in it: better too much is masked than too little.
_USER = re.compile(r"(://[^/?#@:]*):.*@", re.DOTALL)
#: `password=...`, up to the next `,name=` or, in a URL, the next `&`.
_SECRET_PAIR = re.compile(
    r"((?:^|[,?&])\s*[\w.-]*(?:TOKEN|SECRET|PASS|PWD|(?<!ROUTING_)KEY|CREDENTIAL|JWT|BEARER|SIG)[\w.-]*\s*=)"
    r"(?=.).*?(?=,\s*\w+\s*=|[&#]|$)", re.IGNORECASE | re.DOTALL,
)


def masked_words(words: Sequence[str]) -> list[str]:
    """The words with the values of secret-looking variables and options masked. After `--` all is the program's."""
    own = words.index("--") if "--" in words else len(words)
    return [_masked(words[at - 1] if at else "", word) for at, word in enumerate(words[:own])] + list(words[own:])


def masked_text(text: str, words: Sequence[str]) -> str:
    """`text`, the line that `words` were read from, with the same masked.

    They are masked where they stand, so that the rest stays as it was given; where quoting is in the way, the whole
    line is written anew from its words.
    """
    masked = masked_words(words)
    changed = {(words[at - 1] if at else "", word, masked[at]) for at, word in enumerate(words) if word != masked[at]}
    if not changed:
        return text
    for before, word, instead in changed:
        pattern = rf"(?<!\S)({re.escape(before)}\s+['\"]?){re.escape(word)}(?=['\"]?(?:\s|$))"
        text = re.sub(pattern, lambda match, instead=instead: match[1] + instead, text)  # type: ignore[misc]
    return text if split_args(text) == masked else join_args(masked)


def masked_place(text: str) -> str:
    """A URL, or `name=value,name=value`, with the passwords in it masked."""
    return _SECRET_PAIR.sub(rf"\1{MASK}", _USER.sub(rf"\1:{MASK}@", text))


def without_secrets(url: str) -> str:
    """A URL as a log may show it: scheme, host, port and path alone."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _masked(before: str, word: str) -> str:
    """A word, given the one before it; an empty secret stays empty."""
    name, equals, value = word.partition("=")
    if before in _OPTIONS:
        return MASK if word else word
    if name in _OPTIONS and value:
        return f"{name}={MASK}"
    if before in _PLACES:
        return masked_place(word)
    if name in _PLACES and equals:
        return f"{name}={masked_place(value)}"
    kept = f"{_VARIABLE}=" if name == _VARIABLE and equals else ""
    if not kept and before != _VARIABLE:
        return word
    variable, _, value = word.removeprefix(kept).partition("=")
    return f"{kept}{variable}={MASK}" if value and _NAME.search(variable) else word
