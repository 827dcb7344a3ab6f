"""Texts in place of numbers, and which of them are valid: the same for command lines and servers."""

from __future__ import annotations

from dlicmd.contract.argv import MAX_NUMBER
from dlicmd.contract.options import COMMANDS, OPTIONS, Kind, Option

#: Invalid for every option.
NONE = ["-0.5", "", "NaN", "inf", "-inf", "Infinity", "1e3", "0x10", "0b1", "１", "½", "²", "٣", "1,5", "+1", "1_000",
        "--1", "1\n2", "1;2", "lots", "9" * 11, "9" * 400, "1" + "0" * 20]
#: Valid for some kinds of options.
FOR_SOME = {
    "-1": {Kind.INTEGER, Kind.PORT},
    "0": {Kind.COUNT, Kind.DEVICES, Kind.INTEGER, Kind.PORT},
    "1.5": {Kind.AMOUNT, Kind.SIZE},
    str(MAX_NUMBER): {Kind.POSITIVE, Kind.COUNT, Kind.DEVICES, Kind.SECONDS, Kind.INTEGER, Kind.SIZE},
    str(MAX_NUMBER + 1): {Kind.SIZE},
    "65536": {Kind.POSITIVE, Kind.COUNT, Kind.DEVICES, Kind.SECONDS, Kind.INTEGER, Kind.AMOUNT, Kind.SIZE},
}
_NUMERIC = {Kind.POSITIVE, Kind.COUNT, Kind.DEVICES, Kind.SECONDS, Kind.PORT, Kind.INTEGER, Kind.AMOUNT, Kind.SIZE}
#: The bounds that an error message names.
BOUNDS = {
    Kind.POSITIVE: ("between 1 and 1000000000",), Kind.COUNT: ("between 0 and 1000000000",),
    Kind.DEVICES: ("between 0 and 1000000000",), Kind.SECONDS: ("between 1 and 1000000000",),
    Kind.PORT: ("between -1 and 65535",), Kind.INTEGER: ("between -1000000000 and 1000000000",),
    Kind.AMOUNT: ("between 0.001 and 1000000000",), Kind.SIZE: ("at most 1024t", "more than 0 and at most 1024 t"),
}


def taking_numbers() -> list[Option]:
    """Return every option and command with a numeric value or a size."""
    return [option for option in (*COMMANDS, *OPTIONS) if option.kind in _NUMERIC and option.metavar]


def values(option: Option) -> list[tuple[str, bool]]:
    """Return texts for the value of an option, and whether each is valid."""
    return [(value, False) for value in NONE] + [(value, option.kind in fine) for value, fine in FOR_SOME.items()]
