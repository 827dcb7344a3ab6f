"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Significant digits of a number with a fraction; the most, when fewer digits do not tell values apart.
DIGITS, _ALL = 4, 17
#: From this size on, a number is written with an exponent.
_LARGE = 1e16


def shown(value: float, unit: str = "", digits: int = DIGITS) -> str:
    """Return a number in at most `digits` significant digits, and its unit behind a space: `0.0465`, `812.5 samples/s`.

    A whole number, and the whole part of a number, keep all their digits: `123456789`, `81235`.
    """
    return f"{_figure(value, digits)} {unit}".rstrip()


def told_apart(values: Sequence[float]) -> list[str]:
    """Return numbers as `shown` does, with as many digits as different numbers need to look different."""
    different = len(set(values))
    for digits in range(DIGITS, _ALL):
        texts = [_figure(value, digits) for value in values]
        if len(set(texts)) == different:
            return texts
    return [_figure(value, _ALL) if isinstance(value, int) else repr(value) for value in values]


def _figure(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return str(value)
    if abs(value) < _LARGE and (value == int(value) or abs(value) >= 10 ** digits):
        return f"{value:.0f}" if value else "0"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"
