"""The differences between the code of two execs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.reading import objects, words

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
CHANGE, DIFF = "change", "diff"
#: The most lines of a file that is compared line by line: the time grows with the square of the lines.
_LONGEST = 5000
_NO_END = "\n\\ No newline at end of file"

Files = Mapping[str, dict[str, Any]]


def files(code: Mapping[str, Any]) -> Files:
    """Return the files in a server's answer, by path."""
    return {words(file.get(wire.PATH)): file for file in objects(code.get(wire.FILES))}


def changes(first: Files, second: Files) -> list[dict[str, Any]]:
    """Return the files that differ, in the order of their paths. Each has `path`, `change`, and a unified `diff` if
    both texts are known."""
    found = []
    for path in sorted({*first, *second}):
        before, after = first.get(path), second.get(path)
        change = ADDED if before is None else REMOVED if after is None else CHANGED
        if before is None or after is None or _differ(before, after):
            diff = unified(path, _text(before), _text(after))
            found.append({wire.PATH: path, CHANGE: change} | ({} if diff is None else {DIFF: diff}))
    return found


def uncertain(first: Files, second: Files) -> list[str]:
    """Return the paths of files that may or may not differ: they were too large for a server to read them."""
    return [path for path in sorted({*first} & {*second})
            if not _differ(first[path], second[path])
            and None in (first[path].get(wire.SHA256), second[path].get(wire.SHA256))]


def _differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    sums = (before.get(wire.SHA256), after.get(wire.SHA256))
    return before.get(wire.BYTES) != after.get(wire.BYTES) or (None not in sums and sums[0] != sums[1])


def _text(file: dict[str, Any] | None) -> str | None:
    """Return the text of a file, empty for a missing file; None if the text is not known."""
    text = "" if file is None else file.get(wire.TEXT)
    return text if isinstance(text, str) else None


def unified(path: str, before: str | None, after: str | None) -> str | None:
    """Return a unified diff, or None if there cannot be one."""
    import difflib  # only for changed text

    if before is None or after is None:
        return None
    old, new = _lines(before), _lines(after)
    if max(len(old), len(new)) > _LONGEST:
        return None
    path = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in path)
    return "".join(f"{line}\n" for line in difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm=""))


def _lines(text: str) -> list[str]:
    """Return the lines of a text. A last line without a newline says so."""
    *lines, rest = text.split("\n")
    return [*lines, rest + _NO_END] if rest else lines
