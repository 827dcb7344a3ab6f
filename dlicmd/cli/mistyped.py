"""Words of a submission that are not options of dlicmd, and so go to the program. Some look like misspelled options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from dlicmd.contract.argv import CommandLine
from dlicmd.contract.options import OPTIONS, Local
from dlicmd.sdk.messages import inert, info

#: Similarity from which a word may be a misspelled option.
_NEAR = 0.85
#: The beginning of an option, unlike that of a negative number.
_OPTION = re.compile(r"--?[A-Za-z_]")


def say_mistyped(line: CommandLine) -> None:
    """Report the options before any `--` that go to the program, and what `mistyped` returns about them."""
    found = mistyped(line)
    for word, meant in found:
        info(f"unknown option {word}: passed to your program; did you mean {meant}?")
    names = dict.fromkeys(word.partition("=")[0] for word in line.before_dashes if _OPTION.match(word))
    if others := [inert(name) for name in names if name not in dict(found)]:
        info(f"passed to your program: {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}. "
             "Write -- before the words of your program to keep them apart")


def mistyped(line: CommandLine) -> list[tuple[str, str]]:
    """Return the words before any `--` that look like a misspelled option, each with the option that may be meant.

    The comparison ignores leading dashes, and it is strict: `--output-dir` and `--num-workers` are options of
    programs. Another spelling of an option, or its letters in another order, is similar however short the option is.
    """
    known = {option.name.lstrip("-"): option.name for option in OPTIONS
             if not option.hidden and option.local in (Local.ACTS, Local.CLIENT)
             and (option.multiple or option.name not in line.values)}
    found = []
    for word in line.before_dashes:
        name = word.partition("=")[0]
        near = _near(name[2:], known) if name.startswith("--") else None
        found += [(name, known[near])] if near else []
    return found


def _near(name: str, known: Collection[str]) -> str | None:
    """Return the name that may be meant, or None."""
    plain = _plain(name)
    near = (
        [one for one in known if _plain(one) == plain]
        or [one for one in known if sorted(_plain(one)) == sorted(plain)]
        or difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
    )
    return near[0] if near else None


def _plain(name: str) -> str:
    """Return a name in lower case, without the characters that separate its words."""
    return name.replace("-", "").replace("_", "").lower()
