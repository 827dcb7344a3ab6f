"""Memory sizes as users write them: `8g`, `4G`, `512m`, `4Gi`, `1.5g`; a bare number is megabytes, as in `mem=`."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,12})(\.[0-9]{1,6})?\s*([kmgtKMGT]?)(i?[bB]?)")
_FACTOR = {"": 2**20, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
MAX_BYTES = 2**50


def parse_size(text: str) -> int:
    """Return the bytes of a memory size. Raises ValueError, with a sentence for the user, when `text` is not a memory
    size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a memory size of at most 1024t; write it like 8g, 512m or 4Gi")
    whole, fraction, unit, _ = match.groups()
    size = int(float(whole + (fraction or "")) * _FACTOR[unit.lower()])
    if not 0 < size <= MAX_BYTES:
        raise ValueError(f"the memory size '{text}' must be more than 0 and at most 1024 t")
    return size


def show_size(size: float) -> str:
    """Return a size in bytes as people read it: `1.9K`, `12.0M`; below one kilobyte plain bytes, `812B`."""
    if size < 1024:
        return f"{int(size)}B"
    for unit in "KMGT":
        size /= 1024
        if size < 1024 or unit == "T":
            return f"{size:.1f}{unit}"
    raise AssertionError("unreachable")


def recorded_size(size: float) -> str:
    """Return a size in bytes as the original client prints it: the largest unit of 1,024, with 1 decimal unless the
    number is whole: `484`, `1.9K`, `2M`."""
    for unit in ("", "K", "M", "G", "T"):
        if size < 1024 or unit == "T":
            return (f"{size:.0f}" if float(size).is_integer() else f"{size:.1f}") + unit
        size /= 1024
    raise AssertionError("unreachable")
