"""The secrets in a command line: each is shown as `***` wherever a submission is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from dlicmd.contract.argv import join_args, split_args

MASK = "***"
#: Names that look secret. Mask too much rather than too little: MYSQL_PWD, PGPASSFILE, Authorization; not AUTHOR.
#: Short words count only between separators: GITHUB_PAT, DB_PW, BLOB_SAS_URL; not PATH, SASKIA.
_NAME = re.compile(
    r"TOKEN|SECRET|PASS|PWD|KEY(?!SPACE)|CREDENTIAL|JWT|BEARER|AUTH(?!OR(?!I))|COOKIE|DSN|SIGNATURE|SESSION"
    r"|WEBHOOK|CONN(?:ECTION)?[_-]?STR|(?:^|[_.:-])(?:PAT|SAS|PW|OTP|SIG)(?:[_.:0-9-]|$)", re.IGNORECASE
)
#: Other names of connection values that are secrets.
_NAMES = frozenset({"service_account"})
_SECRET_OPTION = re.compile(rf"(?!.*TOKENI)(?:{_NAME.pattern})", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")
_OPTIONS = ("--cs-url-bearer", "--jwt-token", "--password")
_VARIABLE = "--msd-env"
#: Options whose value is the target of metrics, a URL or `name=value,name=value`. The value may contain a password.
_PLACES = ("--cs-url-meta", "--cs-rmq-meta")
_SOURCES = "--data-source"
#: Values of a connection in a data source that are not secrets. All other values may be secrets.
_PUBLIC = frozenset({
    "id", "name", "href", "type", "host", "hostname", "server", "port", "database", "dbname", "database_name", "schema",
    "user", "username", "user_name", "bucket", "region", "region_name", "url", "endpoint", "endpoint_url", "account",
    "account_name", "container", "share", "project", "warehouse", "folder",
})
#: A password in a URL extends to the last @ and may contain any character. Mask too much rather than too little.
_USER = re.compile(r"(://[^/?#@:]*):.*@", re.DOTALL)
#: `password=...`, up to the next `,name=` or, in a URL, the next `&`. A connection string of Azure separates with `;`.
_SECRET_PAIR = re.compile(
    r"((?:^|[,?&;])\s*(?:[\w.-]*(?:TOKEN|SECRET|PASS|PWD|(?<!ROUTING_)KEY|CREDENTIAL|JWT|BEARER|SIG|SESSION)[\w.-]*"
    r"|(?:[\w.-]*[_.-])?(?:PAT|SAS|PW|OTP))\s*=)"
    r"(?=.).*?(?=,\s*\w+\s*=|[&#]|$)", re.IGNORECASE | re.DOTALL,
)


def looks_secret(name: str) -> bool:
    """Return whether a value of that name is probably a secret."""
    return _NAME.search(name) is not None or name.lower() in _NAMES


def secret_names() -> str:
    """Return the names that look secret, as a regular expression that every JSON Schema validator knows."""
    exact = "|".join(sorted(_NAMES)).upper()
    return re.sub("[A-Z]", lambda letter: f"[{letter[0]}{letter[0].lower()}]", f"{_NAME.pattern}|^({exact})$")


def masked_words(words: Sequence[str]) -> list[str]:
    """Return the words with the values of secret-looking variables and options masked. Words after `--` are the
    program's and stay."""
    own = words.index("--") if "--" in words else len(words)
    masked = [_masked(words[at - 1] if at else "", word) for at, word in enumerate(words[:own])]
    # A data source that lost its quotes on the way has become many words.
    torn = False
    for at in range(1, own):
        torn = (torn or (words[at - 1] == _SOURCES and masked[at] == MASK)) and not words[at].startswith("--")
        if torn:
            masked[at] = MASK
    return masked + list(words[own:])


#: Maximum number of secrets to mask in place: each one is searched in the whole line.
_MOST_IN_PLACE = 20


def masked_text(text: str, words: Sequence[str]) -> str:
    """Return `text`, the line that `words` were read from, with the same values masked.

    Secrets are masked in place, so that the rest stays as given. If quotes or the number of secrets prevent that, the
    whole line is written anew from its words.
    """
    masked = masked_words(words)
    changed = {(words[at - 1] if at else "", word, masked[at]) for at, word in enumerate(words) if word != masked[at]}
    if not changed:
        return text
    if len(changed) > _MOST_IN_PLACE:
        return join_args(masked)
    for before, word, instead in changed:
        pattern = rf"(?<!\S)({re.escape(before)}\s+['\"]?){re.escape(word)}(?=['\"]?(?:\s|$))"
        text = re.sub(pattern, lambda match, instead=instead: match[1] + instead, text)  # type: ignore[misc]
    return text if split_args(text) == masked else join_args(masked)


def masked_arguments(words: Sequence[str]) -> list[str]:
    """Return the words of a program with the values of secret-looking options masked. Numbers are not secrets, and a
    tokenizer is none."""
    masked: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        name, equals, value = word.partition("=")
        if equals and _SECRET_OPTION.search(name) and not _NUMBER.fullmatch(value):
            masked.append(f"{name}={_masked_whole(value)}")
        elif before.startswith("-") and "=" not in before and _SECRET_OPTION.search(before):
            masked.append(word if _NUMBER.fullmatch(word) or word.startswith("-") else _masked_whole(word))
        else:
            masked.append(masked_place(word) if "://" in word else word)
    return masked


def masked_sources(sources: Any) -> Any:
    """Return data sources, as JSON, with their credentials masked."""
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
    """Return a URL, or `name=value,name=value`, with its passwords masked."""
    return _SECRET_PAIR.sub(rf"\1{MASK}", _USER.sub(rf"\1:{MASK}@", text))


def without_secrets(url: str) -> str:
    """Return a URL for a log: scheme, host, port and path alone."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _masked(before: str, word: str) -> str:
    """Return a word, masked if it or the word before it requires that. An empty secret stays empty."""
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
    return f"{name}{equals}{masked_place(value)}" if "://" in value or ";" in value else pair


def _masked_source_text(text: str) -> str:
    """Return the value of --data-source, unchanged if it has no credentials. A value that is not JSON may have some
    and is masked."""
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
