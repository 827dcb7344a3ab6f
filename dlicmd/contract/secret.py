"""What of a command line is a secret, and is shown as `***` wherever a submission is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from dlicmd.contract.argv import join_args, split_args

MASK = "***"
#: Better too much is masked than too little: MYSQL_PWD, PGPASSFILE, Authorization; not AUTHOR.
_NAME = re.compile(
    r"TOKEN|SECRET|PASS|PWD|KEY(?!SPACE)|CREDENTIAL|JWT|BEARER|AUTH(?!OR(?!I))|COOKIE|DSN|SIGNATURE", re.IGNORECASE
)
#: Other names that values of connections have which are secrets.
_NAMES = frozenset({"sas", "connection_string", "service_account"})
_OPTIONS = ("--cs-url-bearer", "--jwt-token", "--password")
_VARIABLE = "--msd-env"
#: Options whose value says where metrics go, a URL or `name=value,name=value`: a password may be part of it.
_PLACES = ("--cs-url-meta", "--cs-rmq-meta")
_SOURCES = "--data-source"
#: Values of a connection that is written into a data source which are no secrets; all others may be.
_PUBLIC = frozenset({
    "id", "name", "href", "type", "host", "hostname", "server", "port", "database", "dbname", "database_name", "schema",
    "user", "username", "user_name", "bucket", "region", "region_name", "url", "endpoint", "endpoint_url", "account",
    "account_name", "container", "share", "project", "warehouse", "folder",
})
#: A password in a URL goes up to the last @, whatever is in it: better too much is masked than too little.
_USER = re.compile(r"(://[^/?#@:]*):.*@", re.DOTALL)
#: `password=...`, up to the next `,name=` or, in a URL, the next `&`.
_SECRET_PAIR = re.compile(
    r"((?:^|[,?&])\s*[\w.-]*(?:TOKEN|SECRET|PASS|PWD|(?<!ROUTING_)KEY|CREDENTIAL|JWT|BEARER|SIG)[\w.-]*\s*=)"
    r"(?=.).*?(?=,\s*\w+\s*=|[&#]|$)", re.IGNORECASE | re.DOTALL,
)


def looks_secret(name: str) -> bool:
    """Whether a value of that name is likely one that nobody may see."""
    return _NAME.search(name) is not None or name.lower() in _NAMES


def secret_names() -> str:
    """The names that look secret, as a regular expression that any JSON Schema validator knows."""
    exact = "|".join(sorted(_NAMES)).upper()
    return re.sub("[A-Z]", lambda letter: f"[{letter[0]}{letter[0].lower()}]", f"{_NAME.pattern}|^({exact})$")


def masked_words(words: Sequence[str]) -> list[str]:
    """The words with the values of secret-looking variables and options masked. After `--` all is the program's."""
    own = words.index("--") if "--" in words else len(words)
    masked = [_masked(words[at - 1] if at else "", word) for at, word in enumerate(words[:own])]
    # A data source that has lost its quotes on the way has become many words.
    torn = False
    for at in range(1, own):
        torn = (torn or (words[at - 1] == _SOURCES and masked[at] == MASK)) and not words[at].startswith("--")
        if torn:
            masked[at] = MASK
    return masked + list(words[own:])


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


def masked_sources(sources: Any) -> Any:
    """Data sources, as JSON, with the credentials in them masked."""
    if isinstance(sources, list):
        return [masked_sources(source) for source in sources]
    if not isinstance(sources, dict):
        return masked_place(sources) if isinstance(sources, str) and "://" in sources else sources
    return {
        key: {name: masked_sources(item) if name in _PUBLIC else MASK for name, item in value.items()}
        if key == "connection" and isinstance(value, dict)
        else MASK if value and not isinstance(value, bool) and looks_secret(key) else masked_sources(value)
        for key, value in sources.items()
    }


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
    if equals and name in _MASKERS and before not in _OPTIONS:
        return f"{name}={_MASKERS[name](value)}"
    return _MASKERS[before](word) if before in _MASKERS else word


def _masked_whole(value: str) -> str:
    return MASK if value else value


def _masked_variable(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if value and _NAME.search(name):
        return f"{name}={MASK}"
    return f"{name}{equals}{masked_place(value)}" if "://" in value else pair


def _masked_source_text(text: str) -> str:
    """The value of --data-source as it was given, if there are no credentials in it; what is no JSON may hold some."""
    try:
        found = json.loads(text)
        masked = masked_sources(found)
    except (ValueError, RecursionError):
        return MASK
    return text if masked == found else json.dumps(masked)


#: Option → its value as it may be shown.
_MASKERS = {
    **dict.fromkeys(_OPTIONS, _masked_whole), **dict.fromkeys(_PLACES, masked_place), _VARIABLE: _masked_variable,
    _SOURCES: _masked_source_text,
}
