"""Parameters in the words of a program: where they are set, and where a search puts its values. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

#: A word of a program that sets a parameter: `--lr`, `--lr=0.1` and `lr=0.1`.
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.+))?", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z_][\w.]*)=(.+)", re.DOTALL)


def parameters_in(words: Sequence[str]) -> dict[str, str]:
    """Return the parameters that the words of a program set, with their values."""
    return {name: value for name, _, _, value in _places(words)}


def placed(words: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the words of a program with the names of parameters in braces in the places of their values. A name that
    is in braces already keeps its places."""
    found = list(words)
    known = " ".join(words)
    for name, at, begin, _ in _places(words):
        if name in names and f"{{{name}}}" not in known:
            found[at] = f"{begin}{{{name}}}"
    return found


def _places(words: Sequence[str]) -> Iterator[tuple[str, int, str, str]]:
    """Yield name, place, beginning of the word and value of each parameter that words set."""
    for at, word in enumerate(words):
        pair, option = _PAIR.fullmatch(word), _OPTION.fullmatch(word)
        after = words[at + 1] if at + 1 < len(words) else "-"
        if pair or (option and option[2] is not None):
            name, value = (pair or option).groups()  # type: ignore[union-attr]
            yield name, at, word[: len(word) - len(value)], value
        elif option and not _OPTION.fullmatch(after) and after != "-":
            yield option[1], at + 1, "", after
